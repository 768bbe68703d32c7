// From tiles to pixels: what each pixel's time holds, of every change within it.

import type { Piece } from "./tiles";
import { NO_TASK } from "./tiles";

export type Field = "tasks" | "load" | "considered";

/** Of each CPU and each column of pixels. */
export interface Grid {
  width: number;
  /** Mean over the part of the column that is known; for decisions, their number. */
  mean: Float32Array;
  min: Float32Array;
  max: Float32Array;
  /** How much of the column is known, from 0 to 1. */
  known: Float32Array;
}

export class Raster {
  readonly nsPerPixel: number;

  constructor(readonly from: number, readonly until: number, readonly width: number, readonly nrCpus: number) {
    this.nsPerPixel = (until - from) / width;
  }

  grid(field: Field, pieces: Piece[]): Grid {
    const cells = this.width * this.nrCpus;
    const grid: Grid = {
      width: this.width,
      mean: new Float32Array(cells),
      min: new Float32Array(cells).fill(Infinity),
      max: new Float32Array(cells).fill(-Infinity),
      known: new Float32Array(cells),
    };
    for (const piece of pieces) {
      if (field === "considered") this.addDecisions(grid, piece);
      else this.addValues(grid, field, piece);
    }
    if (field === "considered") grid.max.set(grid.mean);
    else for (let cell = 0; cell < cells; cell++) if (grid.known[cell] > 0) grid.mean[cell] /= grid.known[cell];
    return grid;
  }

  private addValues(grid: Grid, field: "tasks" | "load", { tile, from, until }: Piece): void {
    if (tile.kind === "bins") {
      const isTasks = field === "tasks";
      const mean = isTasks ? tile.tasksMean : tile.loadMean;
      const min = isTasks ? tile.tasksMin : tile.loadMin;
      const max = isTasks ? tile.tasksMax : tile.loadMax;
      const first = Math.max(0, Math.floor((from - tile.begin) / tile.binNs));
      const last = Math.min(tile.bins, Math.ceil((until - tile.begin) / tile.binNs));
      for (let cpu = 0; cpu < this.nrCpus; cpu++) {
        for (let bin = first; bin < last; bin++) {
          const begin = Math.max(from, tile.begin + bin * tile.binNs);
          const end = Math.min(until, tile.begin + (bin + 1) * tile.binNs);
          const cell = cpu * tile.bins + bin;
          this.add(grid, cpu, begin, end, mean[cell], min[cell], max[cell]);
        }
      }
      return;
    }
    tile.cpus.forEach((events, cpu) => {
      const values = events[field];
      const { time } = events;
      for (let index = lastUpTo(time, from); index < time.length && time[index] < until; index++) {
        const end = index + 1 < time.length ? time[index + 1] : until;
        const value = values[index];
        this.add(grid, cpu, Math.max(from, time[index]), Math.min(until, end), value, value, value);
      }
    });
  }

  private add(grid: Grid, cpu: number, begin: number, end: number, mean: number, min: number, max: number): void {
    const x0 = Math.max(0, (begin - this.from) / this.nsPerPixel);
    const x1 = Math.min(this.width, (end - this.from) / this.nsPerPixel);
    const row = cpu * this.width;
    for (let x = Math.floor(x0); x < x1; x++) {
      const share = Math.min(x1, x + 1) - Math.max(x0, x);
      const cell = row + x;
      grid.mean[cell] += mean * share;
      grid.known[cell] += share;
      if (min < grid.min[cell]) grid.min[cell] = min;
      if (max > grid.max[cell]) grid.max[cell] = max;
    }
  }

  private addDecisions(grid: Grid, { tile, from, until }: Piece): void {
    if (tile.kind === "bins") {
      const first = Math.max(0, Math.floor((from - tile.begin) / tile.binNs));
      const last = Math.min(tile.bins, Math.ceil((until - tile.begin) / tile.binNs));
      for (let cpu = 0; cpu < this.nrCpus; cpu++) {
        for (let bin = first; bin < last; bin++) {
          const many = tile.considered[cpu * tile.bins + bin];
          if (!many) continue;
          const x = Math.floor((tile.begin + (bin + 0.5) * tile.binNs - this.from) / this.nsPerPixel);
          if (x >= 0 && x < this.width) grid.mean[cpu * this.width + x] += many;
        }
      }
      return;
    }
    for (const decision of tile.decisions) {
      if (decision.time < from || decision.time >= until) continue;
      const x = Math.floor((decision.time - this.from) / this.nsPerPixel);
      if (x < 0 || x >= this.width) continue;
      for (const cpu of decision.considered) if (cpu < this.nrCpus) grid.mean[cpu * this.width + x] += 1;
    }
  }

  /** Calls `draw` for every stretch in which one task had a CPU, or most of it: with its share. */
  eachRun(
    pieces: Piece[],
    draw: (cpu: number, x0: number, x1: number, task: number, share: number, isExact: boolean) => void,
  ): void {
    const x = (time: number) => (time - this.from) / this.nsPerPixel;
    for (const { tile, from, until } of pieces) {
      if (tile.kind === "bins") {
        const first = Math.max(0, Math.floor((from - tile.begin) / tile.binNs));
        const last = Math.min(tile.bins, Math.ceil((until - tile.begin) / tile.binNs));
        for (let cpu = 0; cpu < this.nrCpus; cpu++) {
          // Bins alike are drawn at once.
          for (let bin = first; bin < last; ) {
            const cell = cpu * tile.bins + bin;
            const [task, share] = [tile.longest[cell], tile.longestShare[cell]];
            let end = bin + 1;
            while (end < last && tile.longest[cell + end - bin] === task && tile.longestShare[cell + end - bin] === share) end++;
            if (task !== NO_TASK) {
              const [begin, stop] = [tile.begin + bin * tile.binNs, tile.begin + end * tile.binNs];
              draw(cpu, x(Math.max(from, begin)), x(Math.min(until, stop)), task, share / 255, false);
            }
            bin = end;
          }
        }
        continue;
      }
      tile.cpus.forEach(({ runBegin, runEnd, runTask }, cpu) => {
        for (let index = firstAfter(runEnd, from); index < runBegin.length && runBegin[index] < until; index++) {
          draw(cpu, x(Math.max(from, runBegin[index])), x(Math.min(until, runEnd[index])), runTask[index], 1, true);
        }
      });
    }
  }
}

/** The place of the last that is not greater; 0 if there is none. */
export function lastUpTo(sorted: Float64Array, value: number): number {
  return Math.max(0, firstAfter(sorted, value) - 1);
}

/** The place of the first that is greater. */
export function firstAfter(sorted: Float64Array, value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
