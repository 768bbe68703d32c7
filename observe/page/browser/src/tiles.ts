// Tiles: what they hold, and where they come from. The format is told in observe/page/src/tile.rs.

import type { Summary, Verdict } from "./summary";

export const NO_TASK = 0xffffffff;

/** Bytes of tiles that are kept. */
const KEPT_BYTES = 400e6;

export interface Bins {
  kind: "bins";
  begin: number;
  binNs: number;
  bins: number;
  bytes: number;
  /** By CPU, then by bin. */
  tasksMean: Float32Array;
  loadMean: Float32Array;
  loadMin: Uint32Array;
  loadMax: Uint32Array;
  longest: Uint32Array;
  tasksMin: Uint16Array;
  tasksMax: Uint16Array;
  runs: Uint16Array;
  considered: Uint16Array;
  notes: Uint16Array;
  busy: Uint8Array;
  longestShare: Uint8Array;
}

export interface CpuEvents {
  /** The first is how the run queue was when the tile began. */
  time: Float64Array;
  tasks: Uint32Array;
  load: Float64Array;
  runBegin: Float64Array;
  runEnd: Float64Array;
  runTask: Uint32Array;
  /** Time waited × 2, + 1 for a task that was woken up. */
  runWait: Float64Array;
}

export interface Decision {
  time: number;
  cpu: number;
  task: number;
  what: number;
  considered: number[];
}

/** What the policy noted, or what was said in a queue of hints. */
export interface Note {
  time: number;
  cpu: number;
  task: number;
  /** Its place in the summary's names of notes. */
  kind: number;
  /** Exact up to 2^53. */
  value: number;
}

export interface Events {
  kind: "events";
  begin: number;
  bytes: number;
  cpus: CpuEvents[];
  decisions: Decision[];
  notes: Note[];
}

export type Tile = Bins | Events;

/** A stretch of time, and the tile that tells of it. */
export interface Piece {
  tile: Tile;
  from: number;
  until: number;
}

class Reading {
  private at: number;
  constructor(private bytes: Uint8Array, at: number) {
    this.at = at;
  }

  number(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = this.bytes[this.at++];
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
  }

  signed(): number {
    const value = this.number();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

export function decode(buffer: ArrayBuffer, begin: number, binNs: number): Tile {
  const [kind, , cpus, bins] = new Uint32Array(buffer, 0, 4);
  if (kind === 1) return decodeEvents(buffer, begin, cpus);
  let at = 16;
  const cells = cpus * bins;
  const take = <T>(Kind: new (buffer: ArrayBuffer, at: number, length: number) => T, size: number): T => {
    const plane = new Kind(buffer, at, cells);
    at += cells * size;
    return plane;
  };
  const [tasksMean, loadMean] = [take(Float32Array, 4), take(Float32Array, 4)];
  const [loadMin, loadMax, longest] = [take(Uint32Array, 4), take(Uint32Array, 4), take(Uint32Array, 4)];
  const [tasksMin, tasksMax] = [take(Uint16Array, 2), take(Uint16Array, 2)];
  const [runs, considered, notes] = [take(Uint16Array, 2), take(Uint16Array, 2), take(Uint16Array, 2)];
  const [busy, longestShare] = [take(Uint8Array, 1), take(Uint8Array, 1)];
  return {
    kind: "bins", begin, binNs, bins, bytes: buffer.byteLength,
    tasksMean, loadMean, loadMin, loadMax, longest, tasksMin, tasksMax, runs, considered, notes, busy, longestShare,
  };
}

function decodeEvents(buffer: ArrayBuffer, begin: number, nrCpus: number): Events {
  const input = new Reading(new Uint8Array(buffer), 16);
  const cpus: CpuEvents[] = [];
  let events = 0;
  for (let cpu = 0; cpu < nrCpus; cpu++) {
    const [tasks0, load0, changes] = [input.number(), input.number(), input.number()];
    const time = new Float64Array(changes + 1);
    const tasks = new Uint32Array(changes + 1);
    const load = new Float64Array(changes + 1);
    [time[0], tasks[0], load[0]] = [begin, tasks0, load0];
    for (let index = 1; index <= changes; index++) {
      time[index] = time[index - 1] + input.number();
      tasks[index] = input.number();
      load[index] = load[index - 1] + input.signed();
    }
    const runs = input.number();
    const [runBegin, runEnd] = [new Float64Array(runs), new Float64Array(runs)];
    const [runTask, runWait] = [new Uint32Array(runs), new Float64Array(runs)];
    let last = begin;
    for (let index = 0; index < runs; index++) {
      last += input.signed();
      runBegin[index] = last;
      runEnd[index] = last + input.number();
      runTask[index] = input.number();
      runWait[index] = input.number();
    }
    events += changes + runs;
    cpus.push({ time, tasks, load, runBegin, runEnd, runTask, runWait });
  }
  const decisions: Decision[] = [];
  let time = begin;
  for (let left = input.number(); left > 0; left--) {
    time += input.number();
    const [cpu, task, what, many] = [input.number(), input.number() - 1, input.number(), input.number()];
    const considered: number[] = [];
    for (let index = 0, last = 0; index < many; index++) considered.push((last += input.number()));
    decisions.push({ time, cpu, task: task < 0 ? NO_TASK : task, what, considered });
  }
  const notes: Note[] = [];
  time = begin;
  for (let left = input.number(); left > 0; left--) {
    time += input.number();
    const [cpu, task, kind, value] = [input.number(), input.number() - 1, input.number(), input.number()];
    notes.push({ time, cpu, task: task < 0 ? NO_TASK : task, kind, value });
  }
  return { kind: "events", begin, bytes: 64 * (events + notes.length) + 1000, cpus, decisions, notes };
}

/** Where tiles come from. */
export interface Source {
  summary(): Promise<Summary>;
  /** What the checks say, as soon as they do. */
  verdict(): Promise<Verdict>;
  /** Whether it can have such a tile. */
  has(name: string): boolean;
  fetch(name: string): Promise<ArrayBuffer>;
}

/** Out of this page. */
export class Inside implements Source {
  async summary(): Promise<Summary> {
    return JSON.parse(new TextDecoder().decode(await this.fetch("summary")));
  }

  async verdict(): Promise<Verdict> {
    const { violations, waste } = await this.summary();
    return { violations: violations ?? [], waste: waste ?? { bin_ns: 1, wasted_ns: [] } };
  }

  has(name: string): boolean {
    return document.getElementById(`ekiden-${name}`) !== null;
  }

  async fetch(name: string): Promise<ArrayBuffer> {
    const text = document.getElementById(`ekiden-${name}`)?.textContent ?? "";
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).arrayBuffer();
  }
}

/** From `ekiden view`. */
export class Server implements Source {
  summary(): Promise<Summary> {
    return this.await("summary", 30);
  }

  verdict(): Promise<Verdict> {
    return this.await("verdict", 300);
  }

  /** Asks until there is an answer: the server is there before it has read the trace. */
  private async await<T>(name: string, everyMs: number): Promise<T> {
    for (;;) {
      const answer: T | null = await (await fetch(name)).json();
      if (answer) return answer;
      await new Promise((resolve) => setTimeout(resolve, everyMs));
    }
  }

  has(): boolean {
    return true;
  }

  async fetch(name: string): Promise<ArrayBuffer> {
    const answer = await fetch(`tile/${name.replace("-", "/")}`);
    if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
    return answer.arrayBuffer();
  }
}

/** The tiles that are here, and those that are on their way. */
export class Tiles {
  private kept = new Map<string, Tile>();
  private underWay = new Set<string>();
  private bytes = 0;

  constructor(private source: Source, private summary: Summary, private arrived: () => void) {}

  /** Whether nothing is on its way. */
  get isSettled(): boolean {
    return this.underWay.size === 0;
  }

  private spanNs(depth: number): number {
    return (this.summary.bin_ns / 2 ** depth) * this.summary.bins;
  }

  /** What there is for a time, with bins of at most `binNs`. What is missing is asked for; until then coarser tiles do. */
  pieces(from: number, until: number, binNs: number): Piece[] {
    const { end_ns } = this.summary;
    const depth = this.depth(binNs);
    const span = this.spanNs(depth);
    const last = Math.min(until, end_ns);
    const pieces: Piece[] = [];
    for (let index = Math.max(0, Math.floor(from / span)); index * span < last; index++) {
      const tile = this.find(depth, index);
      if (!tile) continue;
      const [begin, end] = [Math.max(from, index * span), Math.min(last, (index + 1) * span)];
      const before = pieces.at(-1);
      if (before?.tile === tile) before.until = end;
      else pieces.push({ tile, from: begin, until: end });
    }
    return pieces;
  }

  /** Asks for what the next step of zooming in will need, as long as nothing else is to be done. */
  async prepare(from: number, until: number, binNs: number): Promise<void> {
    const depth = this.depth(binNs);
    const span = this.spanNs(depth);
    for (let index = Math.max(0, Math.floor(from / span)); index * span < Math.min(until, this.summary.end_ns); index++) {
      if (!this.isSettled) return;
      const [name, isExact] = [`${depth}-${index}`, this.exact(depth, index)];
      if (isExact || this.kept.has(name) || !this.source.has(name)) continue;
      await this.ask(name, index * span, this.summary.bin_ns / 2 ** depth, false);
    }
  }

  private exact(depth: number, index: number): boolean {
    for (let [d, i] = [depth, index]; d >= 0; [d, i] = [d - 1, Math.floor(i / 2)]) {
      if (this.kept.get(`${d}-${i}`)?.kind === "events") return true;
    }
    return false;
  }

  private depth(binNs: number): number {
    const { bin_ns, depth_max } = this.summary;
    return Math.min(depth_max, Math.max(0, Math.ceil(Math.log2(bin_ns / binNs))));
  }

  /** The best that is here for a tile. */
  private find(depth: number, index: number): Tile | undefined {
    let best: Tile | undefined;
    for (let [d, i] = [depth, index]; d >= 0; [d, i] = [d - 1, Math.floor(i / 2)]) {
      const tile = this.kept.get(`${d}-${i}`);
      if (tile && (!best || tile.kind === "events")) best = tile;
      if (tile?.kind === "events") return this.touch(`${d}-${i}`, tile);
      if (tile && d === depth) return this.touch(`${d}-${i}`, tile);
    }
    for (let [d, i] = [depth, index]; d >= 0; [d, i] = [d - 1, Math.floor(i / 2)]) {
      const name = `${d}-${i}`;
      if (this.kept.has(name)) break;
      if (!this.source.has(name)) continue;
      this.ask(name, i * this.spanNs(d), this.summary.bin_ns / 2 ** d);
      break;
    }
    return best;
  }

  private touch(name: string, tile: Tile): Tile {
    this.kept.delete(name);
    this.kept.set(name, tile);
    return tile;
  }

  private async ask(name: string, begin: number, binNs: number, isWanted = true): Promise<void> {
    if (this.underWay.has(name)) return;
    if (isWanted) this.underWay.add(name);
    try {
      const tile = decode(await this.source.fetch(name), begin, binNs);
      if (this.kept.has(name)) return;
      this.kept.set(name, tile);
      this.bytes += tile.bytes;
      for (const [old, gone] of this.kept) {
        if (this.bytes < KEPT_BYTES) break;
        // The whole trace stays: there is always something to be drawn.
        if (old === "0-0" || old === name) continue;
        this.kept.delete(old);
        this.bytes -= gone.bytes;
      }
    } catch (error) {
      // A server that has ended; what is here is still shown.
      console.warn("no tile", name, error);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    } finally {
      if (isWanted) {
        this.underWay.delete(name);
        this.arrived();
      }
    }
  }
}
