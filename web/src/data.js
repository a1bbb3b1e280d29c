// Reads the data of the page, as internal/report/html/encode.go writes them: the length of a JSON document, the
// document, and columns of numbers as LEB128 varints; all of it compressed (RFC 1951) and in base64.

/** @param {string} text base64 @returns {Promise<Uint8Array>} what was compressed */
export async function unpack(text) {
  const raw = atob(text);
  const packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Reads varints one after the other. */
class Cursor {
  /** @param {Uint8Array} bytes @param {number} at */
  constructor(bytes, at) {
    this.bytes = bytes;
    this.at = at;
  }

  /** @returns {number} exact below 2^53 */
  next() {
    const { bytes } = this;
    let b = bytes[this.at++];
    if (b < 0x80) return b;
    let n = b & 0x7f;
    let scale = 128;
    do {
      b = bytes[this.at++];
      n += (b & 0x7f) * scale;
      scale *= 128;
    } while (b >= 0x80);
    return n;
  }

  /** @returns {number} a zigzag varint */
  signed() {
    const n = this.next();
    return n % 2 ? -(n + 1) / 2 : n / 2;
  }
}

/**
 * One line of the timeline. Times are units of doc.quantum ns after the beginning of the window.
 * @typedef {Object} Track
 * @property {string} kind
 * @property {string} name
 * @property {string} group
 * @property {number} n
 * @property {number} base number of the first item, in the numbering of all
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {Uint32Array} label
 * @property {Uint32Array} count 0: one item as it was recorded; else so many are drawn as one
 * @property {Float64Array} lead of one item: number of the call or thread that it leads to, or -1; of several: share that they take
 * @property {Float64Array|null} reach the latest end so far, where items overlap
 * @property {Uint8Array|null} depth where items overlap: how many lie around it
 */

/**
 * @param {Uint8Array} bytes what unpack returned
 * @returns {{doc: any, tracks: Track[], flames: any[]}}
 */
export function read(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const doc = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const cursor = new Cursor(bytes, 4 + length);
  const flames = doc.flames.map((head) => readFlame(cursor, head));
  let base = 0;
  const tracks = doc.tracks.map((head) => {
    const track = readTrack(cursor, head, base);
    base += head.n;
    return track;
  });
  return { doc, tracks, flames };
}

function readTrack(cursor, head, base) {
  const { n } = head;
  const start = new Float64Array(n);
  const end = new Float64Array(n);
  const label = new Uint32Array(n);
  const count = new Uint32Array(n);
  const lead = new Float64Array(n);
  for (let i = 0; i < n; i++) start[i] = cursor.signed();
  let last = 0;
  for (let i = 0; i < n; i++) {
    start[i] += last;
    last = end[i] = start[i] + cursor.next();
  }
  for (let i = 0; i < n; i++) label[i] = cursor.next();
  for (let i = 0; i < n; i++) count[i] = cursor.next();
  last = 0;
  for (let i = 0; i < n; i++) {
    if (count[i] > 0) {
      lead[i] = cursor.next() / 255;
      continue;
    }
    const code = cursor.next();
    if (code === 0) {
      lead[i] = -1;
      continue;
    }
    const zigzag = code - 1;
    last += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
    lead[i] = last;
  }
  return { ...head, base, start, end, label, count, lead, ...overlap(head.kind, start, end) };
}

/** Says how items lie in each other, where they do. */
function overlap(kind, start, end) {
  let latest = -1;
  let overlaps = false;
  for (let i = 0; i < start.length && !overlaps; i++) {
    overlaps = start[i] < latest;
    latest = Math.max(latest, end[i]);
  }
  if (!overlaps) return { reach: null, depth: null };
  const reach = new Float64Array(start.length);
  const depth = kind === 'range' || kind === 'request' ? new Uint8Array(start.length) : null;
  const open = [];
  latest = 0;
  for (let i = 0; i < start.length; i++) {
    reach[i] = latest = Math.max(latest, end[i]);
    if (!depth) continue;
    while (open.length && open[open.length - 1] <= start[i]) open.pop();
    depth[i] = Math.min(open.length, 3);
    open.push(end[i]);
  }
  return { reach, depth };
}

function readFlame(cursor, head) {
  const { n } = head;
  const parent = new Int32Array(n);
  const frame = new Uint32Array(n);
  const total = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const back = cursor.next();
    parent[i] = back === 0 ? -1 : i - back;
  }
  for (let i = 0; i < n; i++) frame[i] = cursor.next();
  for (let i = 0; i < n; i++) total[i] = cursor.next();
  return { ...head, parent, frame, total };
}

/**
 * The first item that ends after a time.
 * @param {Track} track @param {number} at
 */
export function firstAfter(track, at) {
  const ends = track.reach ?? track.end;
  let low = 0;
  let high = track.n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Sums by label; made once, because it has a place for each of them. */
export class Tally {
  /** @param {number} n labels */
  constructor(n) {
    this.sums = new Float64Array(n);
    this.used = [];
  }

  add(label, n) {
    if (this.sums[label] === 0) this.used.push(label);
    this.sums[label] += n || 1e-9;
  }

  /** Hands out the sums, in the order in which labels came, and forgets them. */
  drain(f) {
    for (const label of this.used) {
      f(label, this.sums[label]);
      this.sums[label] = 0;
    }
    this.used.length = 0;
  }
}
