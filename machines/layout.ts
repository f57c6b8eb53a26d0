/**
 * Computes where to draw the states and transitions of a small flat machine. Pure. A layered layout (Sugiyama): states
 * are in layers in the order in which the machine declares them, and the label of an edge is a box in a separate layer
 * between two layers of states, so nothing can overlap. Transitions between the same two states are one edge with
 * several lines; those against the order run backwards through the same corridors.
 */
export interface ChartShape {
  initial: string;
  states: readonly { id: string }[];
  transitions: readonly { event: string; from: string; to: string }[];
}

export interface Box {
  /** The upper left corner. */
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Drawing {
  width: number;
  height: number;
  states: (Box & { id: string })[];
  edges: {
    from: string;
    to: string;
    /** One label line per event, in the order of the machine. */
    events: string[];
    label: Box;
    /** The `d` attribute of an SVG path from state to state, ending at the tip of the arrow. */
    path: string;
  }[];
  /** The path of the arrow that leads to the first state. */
  start: string;
}

/** Right: from left to right, for wide screens. Down: from top to bottom, for narrow ones. */
export type Direction = 'right' | 'down';

/** The assumed width of letters and height of lines in the drawing; the style sheet must match. */
const EVENT_LETTER = 6.7;
export const EVENT_LINE = 15;
const STATE_LETTER = 7.4;
const STATE_HEIGHT = 34;
/** The distance between the boxes of one layer, and between layers. */
const GAP = 12;
const LAYER_GAP = { right: 26, down: 20 };
const MARGIN = 10;
const START = 22;
const PORT = 11;

/** A box of a layer. `across` is the axis of the layer, `along` the axis from layer to layer. */
interface Item {
  layer: number;
  across: number;
  along: number;
  /** The center, on the axis of the layer. */
  at: number;
  before: Item[];
  after: Item[];
  state?: string;
}

interface Edge {
  from: string;
  to: string;
  events: string[];
  label: Item;
  /** Ordered from the lower layer to the higher one. */
  chain: Item[];
}

export function layOut(chart: ChartShape, direction: Direction): Drawing {
  const order = new Map(chart.states.map(({ id }, n) => [id, n]));
  const merged = new Map<string, { from: string; to: string; events: string[] }>();
  for (const { from, to, event } of chart.transitions) {
    const key = `${from} ${to}`;
    const edge = merged.get(key) ?? { from, to, events: [] };
    if (!edge.events.includes(event)) edge.events.push(event);
    merged.set(key, edge);
  }
  const lower = ({ from, to }: { from: string; to: string }) => (order.get(from)! <= order.get(to)! ? from : to);
  const pairs = [...merged.values()].filter(({ from, to }) => from !== to);
  const loops = new Map([...merged.values()].filter(({ from, to }) => from === to).map((loop) => [loop.from, loop]));

  const layerOf = layers(chart, pairs, order);
  const items = new Map<string, Item>();
  for (const { id } of chart.states) {
    const loop = loops.get(id);
    const text = loop && labelSize(loop.events);
    const width = id.length * STATE_LETTER + 26;
    const ports = Math.max(
      pairs.filter((edge) => lower(edge) === id).length,
      pairs.filter((edge) => lower(edge) !== id && (edge.from === id || edge.to === id)).length,
    );
    const side = ports * PORT + 8;
    const box =
      direction === 'right'
        ? { along: Math.max(width, (text?.width ?? 0) + 16), across: Math.max(STATE_HEIGHT, side) }
        : { along: STATE_HEIGHT, across: Math.max(width, side) };
    // a loop is drawn next to its state, on the axis of the layer, as part of the same box
    const beside = text ? (direction === 'right' ? text.height : text.width) + LOOP : 0;
    items.set(id, {
      layer: layerOf.get(id)! * 2,
      across: box.across + beside,
      along: direction === 'down' && text ? Math.max(box.along, text.height) : box.along,
      at: 0,
      before: [],
      after: [],
      state: id,
    });
  }
  const all: Item[][] = [];
  const put = (item: Item) => {
    all[item.layer] ??= [];
    all[item.layer]!.push(item);
    return item;
  };
  for (const item of items.values()) put(item);
  const edges = pairs.map(({ from, to, events }): Edge => {
    const [first, last] =
      lower({ from, to }) === from ? [items.get(from)!, items.get(to)!] : [items.get(to)!, items.get(from)!];
    const size = labelSize(events);
    // the label goes next to the state that the edge leaves
    const place = items.get(from) === first ? first.layer + 1 : last.layer - 1;
    const chain: Item[] = [];
    let label: Item | undefined;
    for (let layer = first.layer + 1; layer < last.layer; layer++) {
      const isLabel = layer === place;
      const [across, along] = !isLabel
        ? [1, 0]
        : direction === 'right'
          ? [size.height, size.width]
          : [size.width, size.height];
      const item = put({ layer, across, along, at: 0, before: [], after: [] });
      if (isLabel) label = item;
      chain.push(item);
    }
    const path = [first, ...chain, last];
    for (let n = 1; n < path.length; n++) {
      path[n]!.before.push(path[n - 1]!);
      path[n - 1]!.after.push(path[n]!);
    }
    return { from, to, events, chain, label: label! };
  });

  const filled = Array.from(all, (layer) => layer ?? []);
  untangle(filled);
  settle(filled);
  return draw({ chart, direction, layers: filled, items, edges, loops });
}

/** The space for a loop next to its state. */
const LOOP = 22;

function labelSize(events: readonly string[]): { width: number; height: number } {
  return {
    width: Math.max(...events.map((event) => event.length)) * EVENT_LETTER + 8,
    height: events.length * EVENT_LINE + 2,
  };
}

/** Assigns each state the length of the longest path to it along the order of the machine. */
function layers(
  chart: ChartShape,
  pairs: readonly { from: string; to: string }[],
  order: ReadonlyMap<string, number>,
): Map<string, number> {
  const found = new Map(chart.states.map(({ id }) => [id, 0]));
  for (const { id } of chart.states) {
    for (const { from, to } of pairs) {
      const [low, high] = order.get(from)! < order.get(to)! ? [from, to] : [to, from];
      if (low === id) found.set(high, Math.max(found.get(high)!, found.get(low)! + 1));
    }
  }
  return found;
}

/** Orders each layer so that few edges cross: sweeps by the mean of the neighbors, keeping the best order seen. */
function untangle(all: Item[][]): void {
  const number = () => {
    for (const layer of all)
      layer.forEach((item, n) => {
        item.at = n;
      });
  };
  const mean = (list: Item[], other: number) =>
    list.length ? list.reduce((sum, { at }) => sum + at, 0) / list.length : other;
  number();
  let best = all.map((layer) => [...layer]);
  let fewest = crossings(all);
  for (let sweep = 0; sweep < 12 && fewest > 0; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? all : all.toReversed()) {
      const wanted = new Map(layer.map((item) => [item, mean(down ? item.before : item.after, item.at)]));
      layer.sort((a, b) => wanted.get(a)! - wanted.get(b)!);
      layer.forEach((item, n) => {
        item.at = n;
      });
    }
    const count = crossings(all);
    if (count < fewest) {
      fewest = count;
      best = all.map((layer) => [...layer]);
    }
  }
  best.forEach((layer, n) => {
    all[n] = layer;
  });
  number();
}

function crossings(all: readonly Item[][]): number {
  let count = 0;
  for (const layer of all) {
    const lines = layer.flatMap((item) => item.after.map((next) => [item.at, next.at] as const));
    for (let i = 0; i < lines.length; i++) {
      for (let j = i + 1; j < lines.length; j++) {
        if ((lines[i]![0] - lines[j]![0]) * (lines[i]![1] - lines[j]![1]) < 0) count++;
      }
    }
  }
  return count;
}

/** Moves the boxes of each layer toward their neighbors, keeping their order and without overlap. */
function settle(all: Item[][]): void {
  for (const layer of all) {
    let at = 0;
    for (const item of layer) {
      item.at = at + item.across / 2;
      at += item.across + GAP;
    }
  }
  for (let round = 0; round < 24; round++) {
    for (const layer of round % 2 === 0 ? all : all.toReversed()) {
      const wanted = layer.map((item) => {
        const near = [...item.before, ...item.after];
        return near.length ? near.reduce((sum, { at }) => sum + at, 0) / near.length : item.at;
      });
      spread(layer, wanted);
    }
  }
}

/**
 * The positions closest to the desired ones, by least squares, that keep order and distance: neighbors that touch are pooled.
 */
function spread(layer: Item[], wanted: readonly number[]): void {
  const offsets: number[] = [];
  layer.forEach((item, n) => {
    const last = layer[n - 1];
    offsets.push(last ? offsets[n - 1]! + (last.across + item.across) / 2 + GAP : 0);
  });
  const pools: { sum: number; count: number }[] = [];
  for (let n = 0; n < layer.length; n++) {
    let pool = { sum: wanted[n]! - offsets[n]!, count: 1 };
    for (let last = pools.at(-1); last && last.sum / last.count > pool.sum / pool.count; last = pools.at(-1)) {
      pools.pop();
      pool = { sum: pool.sum + last.sum, count: pool.count + last.count };
    }
    pools.push(pool);
  }
  let n = 0;
  for (const { sum, count } of pools) {
    for (let k = 0; k < count; k++, n++) layer[n]!.at = sum / count + offsets[n]!;
  }
}

function draw({
  chart,
  direction,
  layers,
  items,
  edges,
  loops,
}: {
  chart: ChartShape;
  direction: Direction;
  layers: readonly Item[][];
  items: ReadonlyMap<string, Item>;
  edges: readonly Edge[];
  loops: ReadonlyMap<string, { events: string[] }>;
}): Drawing {
  const right = direction === 'right';
  const every = layers.flat();
  const lowest = Math.min(...every.map((item) => item.at - item.across / 2)) - MARGIN;
  for (const item of every) item.at -= lowest;
  const breadth = Math.max(...every.map((item) => item.at + item.across / 2)) + MARGIN;
  const thickness = layers.map((layer) => Math.max(0, ...layer.map(({ along }) => along)));
  const from: number[] = [];
  let along = MARGIN + START;
  for (const size of thickness) {
    from.push(along);
    along += size + LAYER_GAP[direction];
  }
  const length = along - LAYER_GAP[direction] + MARGIN;
  const point = (a: number, c: number): Point => (right ? [a, c] : [c, a]);
  const boxOf = (item: Item): Box => {
    const start = from[item.layer]! + (thickness[item.layer]! - item.along) / 2;
    const [x, y] = point(start, item.at - item.across / 2);
    return right ? { x, y, width: item.along, height: item.across } : { x, y, width: item.across, height: item.along };
  };
  /** The state itself, without its loop. */
  const stateBox = (id: string): Box => {
    const box = boxOf(items.get(id)!);
    const loop = loops.get(id);
    if (!loop) return box;
    const size = labelSize(loop.events);
    if (right) return { ...box, height: box.height - size.height - LOOP };
    return {
      ...box,
      y: box.y + (box.height - STATE_HEIGHT) / 2,
      width: box.width - size.width - LOOP,
      height: STATE_HEIGHT,
    };
  };
  const boxes = new Map(chart.states.map(({ id }) => [id, stateBox(id)]));

  /** Where a chain attaches to its state: side by side, in the order of the next items. */
  const port = (id: string, side: 'before' | 'after', edge: Edge): Point => {
    const item = items.get(id)!;
    const box = boxes.get(id)!;
    const near = (other: Edge) => (side === 'after' ? other.chain[0]! : other.chain.at(-1)!);
    const mine = edges
      .filter((other) => (side === 'after' ? other.chain[0]!.before[0] : other.chain.at(-1)!.after[0]) === item)
      .sort((a, b) => near(a).at - near(b).at);
    const [middle, size] = right ? [box.y + box.height / 2, box.height] : [box.x + box.width / 2, box.width];
    const step = Math.min(PORT, (size - 8) / mine.length);
    const across = middle + (mine.indexOf(edge) - (mine.length - 1) / 2) * step;
    const end = right ? (side === 'after' ? box.x + box.width : box.x) : side === 'after' ? box.y + box.height : box.y;
    return point(end, across);
  };

  const drawn = edges.map((edge) => {
    const [first, last] = [edge.chain[0]!.before[0]!.state!, edge.chain.at(-1)!.after[0]!.state!];
    const points: Point[] = [port(first, 'after', edge)];
    for (const item of edge.chain) {
      const start = from[item.layer]!;
      points.push(point(start, item.at), point(start + thickness[item.layer]!, item.at));
    }
    points.push(port(last, 'before', edge));
    if (edge.from === last) points.reverse();
    const { from: source, to, events } = edge;
    return { from: source, to, events, label: boxOf(edge.label), path: curve(points, right) };
  });
  const looped = [...loops].map(([id, { events }]) => {
    const box = boxes.get(id)!;
    const size = labelSize(events);
    const label = right
      ? { x: box.x + (box.width - size.width) / 2, y: box.y + box.height + LOOP, ...size }
      : { x: box.x + box.width + LOOP, y: box.y + (box.height - size.height) / 2, ...size };
    return { from: id, to: id, events, label, path: loopPath(box, right) };
  });

  const first = boxes.get(chart.initial)!;
  const start = right
    ? `M ${round(first.x - START)} ${round(first.y + first.height / 2)} H ${round(first.x)}`
    : `M ${round(first.x + first.width / 2)} ${round(first.y - START)} V ${round(first.y)}`;
  return {
    width: Math.ceil(right ? length : breadth),
    height: Math.ceil(right ? breadth : length),
    states: chart.states.map(({ id }) => ({ id, ...boxes.get(id)! })),
    edges: [...drawn, ...looped],
    start,
  };
}

type Point = readonly [x: number, y: number];
const round = (n: number) => Math.round(n * 10) / 10;

/** A smooth curve through the points that leaves and enters each along the axis of the layers. */
function curve(points: readonly Point[], right: boolean): string {
  const [[x, y]] = points as [Point];
  let path = `M ${round(x)} ${round(y)}`;
  for (let n = 1; n < points.length; n++) {
    const [ax, ay] = points[n - 1]!;
    const [bx, by] = points[n]!;
    const [mx, my] = [(ax + bx) / 2, (ay + by) / 2];
    path += right
      ? ` C ${round(mx)} ${round(ay)} ${round(mx)} ${round(by)} ${round(bx)} ${round(by)}`
      : ` C ${round(ax)} ${round(my)} ${round(bx)} ${round(my)} ${round(bx)} ${round(by)}`;
  }
  return path;
}

/** Out of the state, to the label next to it and back. */
function loopPath({ x, y, width, height }: Box, right: boolean): string {
  const reach = LOOP - 2;
  if (right) {
    const [middle, edge] = [x + width / 2, y + height];
    return `M ${round(middle - 14)} ${round(edge)} C ${round(middle - 18)} ${round(edge + reach)} ${round(middle + 18)} ${round(edge + reach)} ${round(middle + 14)} ${round(edge)}`;
  }
  const [middle, edge] = [y + height / 2, x + width];
  return `M ${round(edge)} ${round(middle - 8)} C ${round(edge + reach)} ${round(middle - 14)} ${round(edge + reach)} ${round(middle + 14)} ${round(edge)} ${round(middle + 8)}`;
}
