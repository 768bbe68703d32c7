// Times and numbers for people. Times are nanoseconds.

const UNITS: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** A duration with about four digits. */
export function duration(ns: number): string {
  const [size, unit] = UNITS.find(([size]) => Math.abs(ns) >= size) ?? UNITS[3];
  const value = ns / size;
  const digits = Math.abs(value) >= 1000 ? 0 : Math.max(0, 3 - Math.floor(Math.log10(Math.max(1, Math.abs(value)))) - 0);
  return `${trim(value.toFixed(unit === "ns" ? 0 : digits))} ${unit}`;
}

/** A moment with all of its digits. */
export function moment(ns: number): string {
  const text = Math.round(ns).toString().padStart(10, "0");
  const [whole, part] = [text.slice(0, -9), text.slice(-9)];
  return `${whole}.${part.replace(/(\d{3})(?=\d)/g, "$1\u2009")} s`;
}

/** A number with thousands apart. */
export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US").replaceAll(",", "\u2009");
}

/** A number with at most so many digits after the point. */
export function fixed(value: number, digits: number): string {
  return trim(value.toFixed(digits));
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Where an axis has its marks, and what stands there. A mark far from 0 is written as a distance from the first. */
export function ticks(begin: number, end: number, most: number): { at: number; text: string; major: boolean }[] {
  const span = end - begin;
  const raw = Math.max(1, span / Math.max(1, most));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) ?? raw);
  const first = Math.ceil(begin / step) * step;
  // From where on absolute figures would be too long to read.
  const relative = first > 0 && first / step > 9999;
  const [size, unit] = UNITS.find(([size]) => (relative ? span : Math.max(span, end)) >= size) ?? UNITS[3];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  const all = [];
  for (let index = 0; ; index++) {
    const at = first + index * step;
    if (at > end) return all;
    const major = relative && index === 0;
    const value = (relative ? at - first : at) / size;
    all.push({ at, major, text: major ? moment(at) : `${relative ? "+" : ""}${value.toFixed(digits)} ${unit}` });
  }
}

/** `0–7, 9` */
export function ranges(sorted: number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let last = i;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last] + 1) last++;
    parts.push(last > i ? `${sorted[i]}–${sorted[last]}` : `${sorted[i]}`);
    i = last + 1;
  }
  return parts.length > 12 ? `${parts.slice(0, 12).join(", ")} …` : parts.join(", ");
}

export function escape(text: string): string {
  return text.replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]!);
}

/** A share of 255. */
export function percent(share: number): string {
  return `${Math.round(share / 2.55)} %`;
}
