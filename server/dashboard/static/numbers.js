// Numbers as people read them.

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

export function percent(share) {
  return Number.isFinite(share) ? `${Math.round(share * 100)} %` : "–";
}

/** The value below which a part of the sorted values lies; undefined for none. */
export function quantile(sorted, part) {
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}

export function sorted(values) {
  return values.filter((one) => one !== null && one !== undefined).sort((a, b) => a - b);
}
