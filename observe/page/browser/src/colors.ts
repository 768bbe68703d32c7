// Colours: one sequential scale that is told apart without seeing red and green (viridis), and one set for programs
// (Okabe and Ito), in light and dark.

export type Rgb = [number, number, number];

const VIRIDIS: Rgb[] = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37],
];

const PROGRAMS: Rgb[] = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [213, 94, 0], [190, 175, 20], [120, 120, 120],
];

/** Where the scale begins, on a light page and on a dark one, which would swallow its dark end. */
const BEGIN = [0.24, 0.36];
/** And where it ends: the last yellow is lost on white. */
const END = 0.94;

function mix(a: Rgb, b: Rgb, share: number): Rgb {
  return [0, 1, 2].map((i) => a[i] + (b[i] - a[i]) * share) as Rgb;
}

function viridis(t: number): Rgb {
  const at = Math.min(1, Math.max(0, t)) * (VIRIDIS.length - 1);
  const low = Math.min(VIRIDIS.length - 2, Math.floor(at));
  return mix(VIRIDIS[low], VIRIDIS[low + 1], at - low);
}

export function css([r, g, b]: Rgb): string {
  return `rgb(${Math.round(r)},${Math.round(g)},${Math.round(b)})`;
}

/** From 0, the page's own ground, over a first colour that stands out from it, to the end of the scale. */
export class Scale {
  private readonly table: Uint32Array;
  private static readonly SIZE = 1024;

  /** `place` says where a value stands: below 0.25 between nothing and the first colour. */
  constructor(ground: Rgb, private readonly place: (value: number) => number) {
    this.table = new Uint32Array(Scale.SIZE);
    const begin = BEGIN[ground[0] < 128 ? 1 : 0];
    const first = viridis(begin);
    for (let i = 0; i < Scale.SIZE; i++) {
      const t = i / (Scale.SIZE - 1);
      const rgb = t < 0.25 ? mix(ground, first, t * 4) : viridis(begin + ((END - begin) * (t - 0.25)) / 0.75);
      const [r, g, b] = rgb.map(Math.round);
      this.table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
    }
  }

  /** As a pixel of an image. */
  pixel(value: number): number {
    return this.table[Math.round(Math.min(1, Math.max(0, this.place(value))) * (Scale.SIZE - 1))];
  }

  css(value: number): string {
    const pixel = this.pixel(value);
    return css([pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]);
  }
}

/** Numbers of tasks: the same colour on every page, and one task always far from none and from two. */
export function tasksPlace(value: number): number {
  return value <= 1 ? value * 0.25 : 0.25 + 0.75 * (1 - 1 / value);
}

/** Loads, in weights of nice 0, up to the highest there is. */
export function loadPlace(most: number): (value: number) => number {
  // A task in a big group weighs little, and must be seen all the same.
  const whole = Math.log2(1 + Math.max(1, most / 64));
  return (value) => Math.min(1, value / 8) * 0.25 + 0.75 * (Math.log2(1 + value / 64) / whole);
}

/** How often a CPU was looked at. */
export function consideredPlace(value: number): number {
  return value <= 0 ? 0 : 0.25 + 0.75 * (1 - 2 / (1 + value));
}

/** The colour of a task: its program's, a little lighter or darker. */
export function taskColor(program: number, task: number): Rgb {
  const rgb = PROGRAMS[program % PROGRAMS.length];
  const shade = [0, 0.28, -0.18, 0.14][task % 4];
  return shade >= 0 ? mix(rgb, [255, 255, 255], shade) : mix(rgb, [0, 0, 0], -shade);
}

/** A colour of the style sheet. */
export function rgbOf(text: string): Rgb {
  const digits = text.trim().replace("#", "");
  // Tools that shorten style sheets write #fff.
  const hex = digits.length === 3 ? [...digits].map((digit) => digit + digit).join("") : digits;
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)) as Rgb;
}
