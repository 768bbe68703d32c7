// The page: opens a trace, shows it, and does what pointer and keys ask for.

import "./style.css";
import { Chart, GUTTER } from "./chart";
import type { PanelName, State } from "./chart";
import type { Shown } from "./raster";
import { duration } from "./format";
import { Overview } from "./overview";
import { WaitCharts, markViolation, showCounters, showViolations } from "./side";
import type { Summary, Violation, Waste } from "./summary";
import { taskName } from "./summary";
import { Inside, Server, Tiles } from "./tiles";
import type { Source } from "./tiles";

declare global {
  interface Window {
    ekidenServer?: boolean;
    ekidenPartial?: boolean;
    /** For tests: whether all is drawn, and where the view is. */
    ekiden?: { isSettled: () => boolean; show: (from: number, until: number) => void; state: State; summary: Summary };
  }
}

const PANELS: [PanelName, string][] = [["tasks", "size"], ["load", "load"], ["lanes", "tasks"], ["considered", "considered"]];
const MOST_ROW_HEIGHT = 22;

const get = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;

/** A choice that this browser remembers, if it may. */
function remembered(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A page from a file may not; then it starts as the system says.
  }
}

function setTheme(theme: string): void {
  document.documentElement.dataset.theme = theme;
  get("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

async function open(source: Source): Promise<void> {
  const summary = await source.summary();
  const end = Math.max(1, summary.end_ns);
  const state: State = {
    from: 0, until: end, panels: new Set(["tasks", "load", "lanes"]), shown: "mean", rowHeight: 6,
    cpu: null, task: null, violation: null, notes: summary.note_names.length > 0,
  };
  // On a big machine the fourth would push the others off the screen.
  if (summary.has_decisions && summary.cpus.length <= 32) state.panels.add("considered");
  title(summary);
  const chart = new Chart(get("chart"), summary, state);
  const overview = new Overview(get("overview"), summary, state);
  const waits = new WaitCharts(get("waits"), summary);
  const tiles = new Tiles(source, summary, () => redraw());
  showCounters(get("counters"), summary);

  let pointer: { time: number; cpu: number | null } | null = null;
  let isDue = false;
  let isDrawn = false;
  let idle = 0;
  const redraw = () => {
    isDrawn = false;
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      chart.draw(tiles);
      overview.draw(tiles, chart.plotWidth);
      chart.pointTo(pointer?.time ?? null, pointer?.cpu ?? state.cpu);
      status();
      isDrawn = true;
      window.clearTimeout(idle);
      idle = window.setTimeout(() => {
        const pixel = (state.until - state.from) / chart.plotWidth / (window.devicePixelRatio || 1);
        if (tiles.isSettled) void tiles.prepare(state.from, state.until, pixel / 2);
      }, 150);
    });
  };

  const status = () => {
    const pixel = (state.until - state.from) / chart.plotWidth / (window.devicePixelRatio || 1);
    const how = chart.isExact
      ? "every change where it happened"
      : chart.isCoarse
        ? window.ekidenPartial && tiles.isSettled ? "coarser here than the trace: this file holds the rest less exactly" : "…"
        : `a pixel counts all changes in ${duration(pixel)}`;
    const follows = [
      state.cpu === null ? "" : `follows CPU ${state.cpu}${summary.has_decisions && !chart.isExact ? " (closer, which CPUs it considered)" : ""}`,
      state.task === null ? "" : `follows ${taskName(summary, state.task)}`,
    ].filter(Boolean);
    get("status").textContent = [`${duration(state.until - state.from)} shown`, how, ...follows].join(" · ");
  };

  const show = (from: number, until: number) => {
    const span = Math.min(end, Math.max(20, until - from));
    state.from = Math.max(0, Math.min(end - span, from));
    state.until = state.from + span;
    history.replaceState(null, "", span === end ? " " : `#${Math.round(state.from)}-${Math.round(state.until)}`);
    redraw();
  };
  const zoom = (factor: number, about = pointer?.time ?? (state.from + state.until) / 2) => {
    show(about - (about - state.from) * factor, about + (state.until - about) * factor);
  };
  const pan = (share: number) => {
    const by = (state.until - state.from) * share;
    show(state.from + by, state.until + by);
  };
  const fitRows = () => {
    const room = window.innerHeight - get("chart").getBoundingClientRect().top - window.scrollY - 40;
    const rows = chart.order.length * Math.max(1, state.panels.size);
    state.rowHeight = Math.max(summary.cpus.length > 256 ? 1 : 3, Math.min(MOST_ROW_HEIGHT, Math.floor((room - 34 * state.panels.size) / rows)));
  };
  const toggle = (name: PanelName) => {
    if (!state.panels.delete(name)) state.panels.add(name);
    document.querySelector(`#toggles [data-panel=${name}]`)!.setAttribute("aria-pressed", String(state.panels.has(name)));
    fitRows();
    redraw();
  };
  const jump = (violation: Violation) => {
    state.violation = violation;
    markViolation(get("violations"), (summary.violations ?? []).indexOf(violation));
    const span = Math.max(1000, violation.at_ns - violation.since_ns);
    show(violation.since_ns - span * 0.4, violation.at_ns + span * 0.4);
    say(`${violation.check}: ${violation.message}`);
  };
  const walk = (step: number) => {
    const all = summary.violations ?? [];
    if (!all.length) return;
    const now = state.violation ? all.indexOf(state.violation) : step > 0 ? -1 : 0;
    jump(all[(now + step + all.length) % all.length]);
  };
  const say = (text: string) => (get("live").textContent = text);

  // Buttons.
  PANELS.forEach(([name, text], index) => {
    const button = document.createElement("button");
    button.textContent = `${index + 1} ${text}`;
    button.dataset.panel = name;
    button.setAttribute("aria-pressed", String(state.panels.has(name)));
    button.addEventListener("click", () => toggle(name));
    if (name === "considered" && !summary.has_decisions) {
      button.disabled = true;
      button.title = "The trace does not tell which CPUs were considered";
    }
    get("toggles").append(button);
  });
  if (summary.note_names.length > 0) {
    const button = document.createElement("button");
    button.id = "notes";
    button.textContent = "notes";
    button.title = `What the policy notes and hears, among the tasks (o): ${summary.note_names.slice(0, 20).join(", ")}`;
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => toggleNotes());
    get("toggles").append(button);
  }
  const toggleNotes = () => {
    state.notes = !state.notes && summary.note_names.length > 0;
    document.getElementById("notes")?.setAttribute("aria-pressed", String(state.notes));
    redraw();
  };
  const shown = get<HTMLSelectElement>("shown");
  shown.addEventListener("change", () => {
    state.shown = shown.value as Shown;
    redraw();
  });
  get("in").addEventListener("click", () => zoom(0.5));
  get("out").addEventListener("click", () => zoom(2));
  get("all").addEventListener("click", () => show(0, end));
  const switchTheme = () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    remember("ekiden-theme", theme);
    setTheme(theme);
    chart.themed();
    waits.draw();
    redraw();
  };
  get("theme").addEventListener("click", switchTheme);
  const help = get<HTMLDialogElement>("help");
  get("help-button").addEventListener("click", () => help.showModal());

  // Keys.
  const keys: Record<string, () => void> = {
    ArrowLeft: () => pan(-0.2), a: () => pan(-0.2), ArrowRight: () => pan(0.2), d: () => pan(0.2),
    "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2),
    "0": () => show(0, end), Home: () => show(0, end),
    n: () => walk(1), p: () => walk(-1),
    "[": () => rows(-1), "]": () => rows(1),
    m: () => {
      shown.selectedIndex = (shown.selectedIndex + 1) % 3;
      shown.dispatchEvent(new Event("change"));
    },
    o: toggleNotes,
    t: switchTheme,
    "?": () => help.showModal(),
    Escape: () => {
      state.cpu = state.task = state.violation = pointer = null;
      tipBox.hidden = true;
      markViolation(get("violations"), -1);
      redraw();
    },
    ArrowUp: () => choose(-1), ArrowDown: () => choose(1),
  };
  PANELS.forEach(([name], index) => {
    if (name !== "considered" || summary.has_decisions) keys[String(index + 1)] = () => toggle(name);
  });
  const rows = (by: number) => {
    state.rowHeight = Math.max(1, Math.min(40, state.rowHeight + by));
    redraw();
  };
  const choose = (step: number) => {
    const row = state.cpu === null ? (step > 0 ? -1 : 0) : chart.order.indexOf(state.cpu);
    state.cpu = chart.order[(row + step + chart.order.length) % chart.order.length];
    const time = pointer?.time ?? (state.from + state.until) / 2;
    pointer = { time, cpu: state.cpu };
    redraw();
    const text = document.createElement("p");
    text.innerHTML = chart.describe(time, state.cpu).replaceAll("<br>", "; ");
    say(text.textContent ?? "");
    tip(chart.describe(time, state.cpu), GUTTER + 40, 130);
  };
  window.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || target.tagName === "SELECT") return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // The pointer over the panels.
  const box = get("chart");
  const tipBox = get("tip");
  const tip = (html: string, x: number, y: number) => {
    tipBox.innerHTML = html;
    tipBox.hidden = false;
    tipBox.style.left = `${Math.max(4, Math.min(x + 16, window.innerWidth - tipBox.offsetWidth - 6))}px`;
    const below = y + 18 + tipBox.offsetHeight < window.innerHeight;
    tipBox.style.top = `${below ? y + 18 : Math.max(4, y - tipBox.offsetHeight - 12)}px`;
  };
  let drag: { x: number; from: number; until: number; moved: boolean; range: HTMLElement | null } | null = null;
  const place = (event: PointerEvent | WheelEvent | MouseEvent) => {
    const rect = box.getBoundingClientRect();
    const panel = chart.panelOf(event.target);
    const top = panel ? (event.target as HTMLElement).getBoundingClientRect().top : 0;
    const x = event.clientX - rect.left;
    return { x, time: chart.timeAt(x), cpu: panel ? chart.cpuAt(event.clientY - top) : null, panel };
  };
  box.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (drag) {
      drag.moved ||= Math.abs(at.x - drag.x) > 3;
      if (drag.range) {
        drag.range.style.left = `${Math.min(at.x, drag.x)}px`;
        drag.range.style.width = `${Math.abs(at.x - drag.x)}px`;
      } else if (drag.moved) {
        const by = ((drag.x - at.x) / chart.plotWidth) * (drag.until - drag.from);
        show(drag.from + by, drag.until + by);
      }
      return;
    }
    if (!at.panel || at.x < GUTTER) {
      pointer = null;
      tipBox.hidden = true;
      chart.pointTo(null, state.cpu);
      return;
    }
    pointer = { time: at.time, cpu: at.cpu };
    chart.pointTo(at.time, at.cpu);
    if (at.cpu !== null) tip(chart.describe(at.time, at.cpu), event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", () => {
    if (drag) return;
    pointer = null;
    tipBox.hidden = true;
    chart.pointTo(null, state.cpu);
  });
  box.addEventListener("pointerdown", (event) => {
    const at = place(event);
    if (!at.panel || event.button !== 0) return;
    if (at.x < GUTTER) {
      state.cpu = state.cpu === at.cpu ? null : at.cpu;
      redraw();
      return;
    }
    tipBox.hidden = true;
    let range: HTMLElement | null = null;
    if (event.shiftKey) {
      range = document.createElement("div");
      range.id = "range";
      box.append(range);
    }
    drag = { x: at.x, from: state.from, until: state.until, moved: false, range };
    (event.target as HTMLElement).setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const at = place(event);
    const { x, moved, range } = drag;
    drag = null;
    range?.remove();
    if (range && moved) {
      const [a, b] = [chart.timeAt(x), at.time].sort((p, q) => p - q);
      show(a, b);
    } else if (!moved && at.cpu !== null && at.panel === "lanes") {
      const task = chart.taskAt(at.time, at.cpu);
      state.task = state.task === task ? null : task;
      redraw();
    }
  });
  box.addEventListener("dblclick", (event) => {
    const at = place(event);
    if (at.panel && at.x >= GUTTER) zoom(0.25, at.time);
  });
  box.addEventListener(
    "wheel",
    (event) => {
      const at = place(event);
      if (!at.panel || at.x < GUTTER) return;
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1000);
      else zoom(1.0015 ** Math.max(-400, Math.min(400, event.deltaY * (event.deltaMode ? 30 : 1))), at.time);
    },
    { passive: false },
  );

  // The pointer over the whole trace: a click moves there, a drag chooses a part.
  const strip = get("overview");
  let begin: number | null = null;
  const stripTime = (event: PointerEvent) =>
    Math.max(0, Math.min(end, ((event.clientX - strip.getBoundingClientRect().left - GUTTER) / chart.plotWidth) * end));
  strip.addEventListener("pointerdown", (event) => {
    begin = stripTime(event);
    strip.setPointerCapture(event.pointerId);
  });
  strip.addEventListener("pointermove", (event) => {
    if (begin === null) return;
    const now = stripTime(event);
    if (Math.abs(now - begin) > end / 200) show(Math.min(begin, now), Math.max(begin, now));
  });
  strip.addEventListener("pointerup", (event) => {
    const now = stripTime(event);
    const half = (state.until - state.from) / 2;
    if (begin !== null && Math.abs(now - begin) <= end / 200) show(now - half, now + half);
    begin = null;
  });

  window.addEventListener("resize", () => {
    fitRows();
    waits.draw();
    redraw();
  });

  const found = (violations: Violation[] | null, waste: Waste | null) => {
    [summary.violations, summary.waste] = [violations, waste];
    get("violations-title").textContent = violations?.length ? `Violations: ${violations.length}` : "Violations";
    showViolations(get("violations"), violations, jump);
    redraw();
  };
  found(summary.violations, summary.waste);
  if (summary.violations === null) void source.verdict().then(({ violations, waste }) => found(violations, waste));

  fitRows();
  const [from, until] = location.hash.slice(1).split("-").map(Number);
  if (until > from) show(from, until);
  else redraw();
  window.ekiden = { isSettled: () => isDrawn && !isDue && tiles.isSettled, show, state, summary };
}

function title(summary: Summary): void {
  const policy = summary.policy ?? "the host's own scheduler";
  document.title = `${summary.workload} under ${policy} – Ekiden`;
  document.querySelector("h1")!.textContent = `${summary.workload || "a trace"} under ${policy}`;
  get("heading").textContent = summary.heading ?? "";
  const host = summary.host === "simulator" ? [`seed ${summary.seed}`, "simulated"] : [`recorded on a ${summary.host}`];
  const parts = [summary.params, summary.machine, ...host, duration(summary.end_ns)];
  get("about").textContent = parts.filter(Boolean).join(" · ");
  get("partial").hidden = !window.ekidenPartial;
  get("partial").textContent =
    "The trace is too long for one file: this one shows all of it, but each single change only at its beginning and where " +
    "violations are. `ekiden view` on the trace itself shows every change everywhere.";
}

setTheme(remembered("ekiden-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
open(window.ekidenServer ? new Server() : new Inside()).catch((error: unknown) => {
  document.querySelector("h1")!.textContent = "This trace cannot be shown";
  get("about").textContent = `${error}. Open this file in a browser of 2023 or later; or run: ekiden view on the trace.`;
  throw error;
});
