// Markdown as nodes of the page: what a model writes never becomes markup, and links lead to http and https only.

const SPAN = 2000; // characters that a mark may embrace: an unclosed one must not make a long answer slow
const INLINE = new RegExp(
  [
    "(?<tick>`+)(?<code>[^\\n]{1,SPAN}?)\\k<tick>(?!`)",
    "\\*\\*(?<bold>[^]{1,SPAN}?)\\*\\*",
    "(?<![\\w*])\\*(?<stressed>[^\\s*](?:[^*]{0,SPAN}?[^\\s*])?)\\*(?!\\w)",
    "(?<!\\w)_(?<slanted>[^\\s_](?:[^_]{0,SPAN}?[^\\s_])?)_(?!\\w)",
    "~~(?<struck>[^]{1,SPAN}?)~~",
    "\\[(?<text>[^\\]\\n]{1,SPAN})\\]\\((?<to>https?:\\/\\/[^\\s)]{1,SPAN})\\)",
  ].join("|").replaceAll("SPAN", `${SPAN}`),
  "u",
);
const NAMES = { bold: "strong", stressed: "em", slanted: "em", struck: "s" };
const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/u;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/u;
const ROW = /^\s*\|(.*)\|\s*$/u;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/u;
const HEAD = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/u;
const QUOTE = /^ {0,3}(?:> ?)+/u; // quotes of quotes are shown as one
const STARTS = [FENCE, ITEM, ROW, RULE, HEAD, QUOTE];

/** A fragment that shows a text. */
export function render(text) {
  const lines = text.trimEnd().split("\n");
  const page = document.createDocumentFragment();
  while (lines.length) {
    const block = take(lines);
    if (block) page.append(block);
  }
  return page;
}

/** Takes the lines of the first block away and returns its element; undefined for empty lines. */
function take(lines) {
  const line = lines[0];
  if (!line.trim()) return void lines.shift();
  if (FENCE.test(line)) return takeCode(lines);
  if (RULE.test(line)) return lines.shift(), element("hr");
  const head = HEAD.exec(line);
  if (head) return lines.shift(), element(`h${Math.min(6, head[1].length + 2)}`, inline(head[2]));
  if (QUOTE.test(line)) return takeQuote(lines);
  if (ITEM.test(line)) return takeList(lines);
  if (ROW.test(line)) return takeTable(lines);
  lines.shift();
  const rest = takeWhile(lines, (one) => one.trim() && !STARTS.some((start) => start.test(one)));
  return element("p", inline([line, ...rest].join("\n")));
}

function takeWhile(lines, holds) {
  const end = lines.findIndex((one) => !holds(one));
  return lines.splice(0, end < 0 ? lines.length : end);
}

function takeQuote(lines) {
  const quoted = takeWhile(lines, (one) => QUOTE.test(one));
  return element("blockquote", render(quoted.map((one) => one.replace(QUOTE, "")).join("\n")));
}

/** A block of code, which may still be open. */
function takeCode(lines) {
  const [, fence, language] = FENCE.exec(lines.shift());
  const body = takeWhile(lines, (one) => !one.trimStart().startsWith(fence));
  lines.shift();
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.addEventListener("click", () => navigator.clipboard?.writeText(body.join("\n")).then(() => (copy.textContent = "Copied")));
  const bar = element("div", element("span", language), copy);
  const block = element("div", bar, element("pre", element("code", body.join("\n"))));
  block.className = "code";
  return block;
}

/** A list, whose items hold the lines that are indented below them. */
function takeList(lines) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/u.test(mark);
  const list = element(ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(mark, 10);
  for (let item; lines.length && (item = ITEM.exec(lines[0])) && item[1].length === indent.length && /\d/u.test(item[2]) === ordered; ) {
    lines.shift();
    const inside = takeWhile(lines, (one) => one.startsWith(`${indent}  `));
    const most = Math.min(...inside.filter((one) => one.trim()).map((one) => one.search(/\S/u)));
    list.append(element("li", inline(item[3]), inside.length ? render(inside.map((one) => one.slice(most)).join("\n")) : ""));
    if (!lines[0]?.trim() && ITEM.test(lines[1] ?? "")) lines.shift(); // items may stand apart
  }
  return list;
}

function takeTable(lines) {
  const rows = takeWhile(lines, (one) => ROW.test(one)).map((one) => ROW.exec(one)[1].split("|").map((cell) => cell.trim()));
  const ruled = rows[1]?.every((cell) => /^:?-+:?$/u.test(cell));
  const cells = (row, name) => element("tr", ...row.map((cell) => element(name, inline(cell))));
  const head = ruled ? [element("thead", cells(rows[0], "th"))] : [];
  return element("table", ...head, element("tbody", ...rows.slice(ruled ? 2 : 0).map((row) => cells(row, "td"))));
}

/** Nodes of a text with marks. */
function inline(text) {
  const line = document.createDocumentFragment();
  for (let rest = text; rest; ) {
    const found = INLINE.exec(rest);
    line.append(found ? rest.slice(0, found.index) : rest);
    if (!found) break;
    line.append(marked(found.groups));
    rest = rest.slice(found.index + found[0].length);
  }
  return line;
}

function marked(groups) {
  if (groups.code !== undefined) return element("code", groups.code.trim());
  if (groups.to !== undefined) {
    const link = element("a", inline(groups.text));
    Object.assign(link, { href: groups.to, target: "_blank", rel: "noopener noreferrer" });
    return link;
  }
  const [kind, text] = Object.entries(groups).find(([name, value]) => NAMES[name] && value !== undefined);
  return element(NAMES[kind], inline(text));
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}
