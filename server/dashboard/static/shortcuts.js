// Single keys that do what buttons do; off while something is typed, and for good where the user says so.

const PLACE = "lengthwise-shortcuts";

export class Shortcuts {
  /** `table` is a list of [key, text, action]. */
  constructor(table) {
    this.table = table;
    this.dialog = document.getElementById("help");
    this.switch = document.getElementById("shortcuts-on");
    this.switch.checked = localStorage.getItem(PLACE) !== "off";
    this.switch.addEventListener("change", () => localStorage.setItem(PLACE, this.switch.checked ? "on" : "off"));
    document.getElementById("help-open").addEventListener("click", () => this.dialog.showModal());
    document.getElementById("help-close").addEventListener("click", () => this.dialog.close());
    this.list(document.getElementById("shortcuts"));
    document.addEventListener("keydown", (event) => this.press(event));
  }

  list(element) {
    const always = [["Tab", "go through everything in order"]];
    for (const [key, text] of [...this.table, ...always]) {
      const term = document.createElement("dt");
      const cap = document.createElement("kbd");
      cap.textContent = key === "Escape" ? "Esc" : key;
      term.append(cap);
      const meaning = document.createElement("dd");
      meaning.textContent = text;
      element.append(term, meaning);
    }
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input, textarea, select");
    if (event.key !== "Escape" && (typing || !this.switch.checked)) return;
    const found = this.table.find(([key]) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found[2]();
  }
}
