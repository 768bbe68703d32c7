// What stands beside the panels: violations, waits, counters.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { count, duration, escape, moment, ranges } from "./format";
import type { Summary, Violation, Waits } from "./summary";

/** So many violations are listed at once. */
const LISTED = 200;

export function showCounters(box: HTMLElement, summary: Summary): void {
  const rows = summary.counters.map(([name, value]) => {
    const text = /^\d+$/.test(value) ? count(Number(value)) : value;
    return `<tr><th scope="row">${escape(name)}</th><td>${escape(text)}</td></tr>`;
  });
  box.innerHTML = `<table>${rows.join("")}</table>`;
}

export function showViolations(box: HTMLElement, violations: Violation[] | null, jump: (to: Violation) => void): void {
  if (violations === null) {
    box.innerHTML = "<p>The checks are at work …</p>";
    return;
  }
  if (violations.length === 0) {
    box.innerHTML = "<p>None: every promise was kept.</p>";
    return;
  }
  box.innerHTML = "";
  const list = document.createElement("ol");
  violations.slice(0, LISTED).forEach((violation, index) => {
    const button = document.createElement("button");
    const tasks = violation.tasks.map((task) => task.name || `PID ${task.pid}`);
    const many = tasks.length > 3 ? `${tasks.slice(0, 3).join(", ")} …` : tasks.join(", ");
    button.innerHTML =
      `<b>${moment(violation.at_ns)}</b> ${escape(violation.check)}` +
      `<span>${escape(violation.message)}</span>` +
      `<span class="faint">lasted ${duration(violation.at_ns - violation.since_ns)}; CPUs ${ranges(violation.cpus)}${many ? `; ${escape(many)}` : ""}</span>`;
    button.dataset.index = String(index);
    button.addEventListener("click", () => jump(violation));
    const item = document.createElement("li");
    item.append(button);
    list.append(item);
  });
  box.append(list);
  if (violations.length > LISTED) {
    box.insertAdjacentHTML("beforeend", `<p>and ${count(violations.length - LISTED)} more; n and p walk through all.</p>`);
  }
}

export function markViolation(box: HTMLElement, index: number): void {
  for (const button of box.querySelectorAll("button")) {
    const isIt = button.dataset.index === String(index);
    button.setAttribute("aria-current", String(isIt));
    if (isIt) button.scrollIntoView({ block: "nearest" });
  }
}

/** Two histograms, of all tasks or of one program. */
export class WaitCharts {
  private plots: uPlot[] = [];

  constructor(private readonly box: HTMLElement, private readonly summary: Summary) {
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Which tasks");
    for (const [index, [name]] of summary.waits.entries()) select.add(new Option(name, String(index)));
    select.addEventListener("change", () => this.draw());
    box.append(select, document.createElement("div"));
    this.draw();
  }

  draw(): void {
    const select = this.box.querySelector("select")!;
    const into = this.box.querySelector("div")!;
    this.plots.forEach((plot) => plot.destroy());
    into.innerHTML = "";
    const [, waits] = this.summary.waits[Number(select.value)];
    this.plots = [
      this.plot(into, "Wake-up latency", "from being woken up to running", waits.wake),
      this.plot(into, "Run-queue wait", "from standing in a run queue to running", waits.queue),
    ].filter((plot) => plot !== null);
  }

  private plot(into: HTMLElement, title: string, about: string, waits: Waits): uPlot | null {
    const percentiles = [50, 99].map((percent) => `${percent} % ≤ ${duration(percentile(waits, percent / 100))}`);
    const text = waits.count
      ? `${count(waits.count)}, mean ${duration(waits.mean_ns)}, ${percentiles.join(", ")}, longest ${duration(waits.max_ns)}`
      : "none";
    into.insertAdjacentHTML("beforeend", `<h3>${title} <small>${about}</small></h3><p class="faint">${text}</p>`);
    if (!waits.count) return null;
    // Steps, with the gaps between buckets at 0. The logarithm has no place for 0 ns.
    const [xs, ys]: [number[], number[]] = [[], []];
    const push = (x: number, y: number) => {
      const at = Math.max(1, x);
      if (xs.at(-1) === at) ys[ys.length - 1] = Math.max(y, ys[ys.length - 1]);
      else {
        xs.push(at);
        ys.push(y);
      }
    };
    waits.buckets.forEach(([begin, end, many], index) => {
      push(begin, many);
      if (waits.buckets[index + 1]?.[0] !== end) push(Math.max(end, 2), 0);
    });
    const style = getComputedStyle(document.documentElement);
    const [text0, grid, fill] = ["text", "line", "idle"].map((name) => style.getPropertyValue(`--${name}`).trim());
    const few = xs.at(-1)! / xs[0] < 1e5;
    const decades: uPlot.Axis.Filter = (_, splits) => splits.map((ns) => (Math.abs(Math.log10(ns) % 1) < 1e-9 ? ns : null));
    const short = (ns: number | null) => (ns === null ? "" : duration(ns).replace(" ", ""));
    const axis = { stroke: text0, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui" };
    return new uPlot(
      {
        width: Math.max(220, this.box.clientWidth - 4),
        height: 130,
        scales: { x: { time: false, distr: 3 }, y: { range: (_, __, most) => [0, most * 1.05] } },
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, y: false },
        series: [{}, { stroke: fill, fill: `${fill}66`, paths: uPlot.paths.stepped!({ align: 1 }), points: { show: false } }],
        axes: [
          {
            ...axis, size: 28, filter: decades, grid: { ...axis.grid, filter: decades }, ticks: { ...axis.ticks, filter: decades },
            values: (_, splits) => splits.map((ns) => (ns !== null && (few || Math.round(Math.log10(ns)) % 3 === 0) ? short(ns) : "")),
          },
          { ...axis, size: 46, values: (_, splits) => splits.map((n) => (n >= 1e6 ? `${n / 1e6}M` : n >= 1e3 ? `${n / 1e3}k` : String(n))) },
        ],
      },
      [xs, ys],
      into,
    );
  }
}

/** At most so long does a share of the waits take: the end of the bucket. */
function percentile(waits: Waits, share: number): number {
  let left = waits.count * share;
  for (const [, end, many] of waits.buckets) {
    left -= many;
    if (left <= 0) return Math.min(end, waits.max_ns);
  }
  return waits.max_ns;
}
