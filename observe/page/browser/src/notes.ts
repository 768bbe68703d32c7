// What the policy noted and what was said in queues of hints: where it is marked, and how it is read out.

import { count, escape, moment } from "./format";
import type { Summary } from "./summary";
import { taskName } from "./summary";
import type { Events, Piece } from "./tiles";
import { NO_TASK } from "./tiles";

/** So many notes about one place are read out. */
const TOLD = 4;

/** Calls `mark` for each note, and where only their numbers are known for each bin that has some. */
export function eachNoted(pieces: Piece[], cpus: number[], mark: (cpu: number, time: number) => void): void {
  for (const { tile, from, until } of pieces) {
    if (tile.kind === "events") {
      for (const { time, cpu } of tile.notes) if (time >= from && time < until && cpu < cpus.length) mark(cpu, time);
      continue;
    }
    const [first, last] = [from, until].map((time) => Math.min(tile.bins, Math.ceil((time - tile.begin) / tile.binNs)));
    for (const cpu of cpus) {
      for (let bin = first; bin < last; bin++) if (tile.notes[cpu * tile.bins + bin]) mark(cpu, tile.begin + bin * tile.binNs);
    }
  }
}

/** The notes about a CPU near a moment, as lines of HTML. */
export function notesNear(summary: Summary, tile: Events, cpu: number, time: number, near: number): string[] {
  const noted = tile.notes.filter((one) => one.cpu === cpu && Math.abs(one.time - time) <= near);
  const lines = noted.slice(0, TOLD).map(({ time: at, task, kind, value }) => {
    const about = task === NO_TASK ? "" : ` about ${escape(taskName(summary, task))}`;
    return `noted: ${escape(summary.note_names[kind] ?? "")} = ${count(value)}${about} at ${moment(at)}`;
  });
  return noted.length > TOLD ? [...lines, `and ${noted.length - TOLD} notes more`] : lines;
}
