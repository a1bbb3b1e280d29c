// Paints the timeline onto its canvas.

import { firstAfter } from './data.js';
import { moment } from './format.js';

/** Height of the axis of times, CSS pixels. */
const axisHeight = 24;
/** Width of what is a moment and must be seen, CSS pixels. */
const momentWidth = 3;
/** With more arrows than this nobody sees anything. */
const maxArrows = 160;
const font = '11px system-ui, sans-serif';

export class Painter {
  /** @param {import('./timeline.js').Timeline} timeline */
  constructor(timeline) {
    this.t = timeline;
    this.axis = axisHeight;
    this.context = timeline.canvas.getContext('2d');
  }

  /** Fits the canvas to its place, with the pixels that the screen has. */
  fit() {
    const { t } = this;
    const width = t.port.clientWidth;
    const height = Math.min(t.height + axisHeight, Math.max(240, innerHeight * 0.72));
    const ratio = devicePixelRatio || 1;
    if (t.canvas.width !== Math.round(width * ratio) || t.canvas.height !== Math.round(height * ratio)) {
      t.canvas.width = Math.round(width * ratio);
      t.canvas.height = Math.round(height * ratio);
      t.canvas.style.width = `${width}px`;
      t.canvas.style.height = `${height}px`;
      t.port.style.height = `${height}px`;
      t.spacer.style.height = `${t.height + axisHeight}px`;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { width, height };
  }

  paint() {
    const { t, context: c } = this;
    const { width, height } = this.fit();
    this.colors();
    c.fillStyle = this.ground;
    c.fillRect(0, 0, width, height);
    c.font = font;
    c.textBaseline = 'middle';
    const top = t.port.scrollTop;
    c.save();
    c.beginPath();
    c.rect(0, axisHeight, width, height - axisHeight);
    c.clip();
    c.translate(0, axisHeight - top);
    const rows = t.rows.filter((r) => r.y + r.height >= top && r.y <= top + height);
    for (const row of rows) row.track ? this.row(row, width) : this.head(row, width);
    this.arrows(rows, width);
    c.restore();
    this.marks(width, height);
    this.ticks(width, height);
  }

  colors() {
    const css = (name) => this.t.theme.css(name);
    [this.ground, this.ink, this.dim, this.line, this.lane, this.head_, this.accent] = [
      '--card',
      '--ink',
      '--dim',
      '--line',
      '--lane',
      '--head',
      '--accent',
    ].map(css);
    this.busy = css('--busy');
    this.hatch ??= new Map();
  }

  head({ head, y, height }, width) {
    const c = this.context;
    c.fillStyle = this.head_;
    c.fillRect(0, y + 3, width, height - 5);
    c.fillStyle = this.ink;
    c.font = `600 ${font}`;
    c.fillText(head, 8, y + height / 2 + 1, width - 16);
    c.font = font;
  }

  row(row, width) {
    const { t, context: c } = this;
    const { track, y, height } = row;
    c.fillStyle = this.lane;
    c.fillRect(t.gutter, y, width - t.gutter, height);
    c.save();
    c.beginPath();
    c.rect(t.gutter, y, width - t.gutter, height);
    c.clip();
    this.coverage(track, y, height, width);
    this.items(track, y, height);
    c.restore();
    if (t.gutter) {
      c.fillStyle = this.dim;
      c.fillText(track.name, 14, y + height / 2, t.gutter - 20);
    }
  }

  /** What was recorded of a device: where it was, busy shines through between the gaps. */
  coverage(track, y, height, width) {
    const { t, context: c } = this;
    if (track.seen < 0) return;
    const list = t.spans[track.seen];
    let x = t.gutter;
    for (let i = 0; i < list.length; i += 2) {
      const from = Math.max(t.gutter, t.x(list[i]));
      const to = Math.min(width, t.x(list[i + 1]));
      if (to <= t.gutter || from >= width) continue;
      this.unseen(x, from, y, height);
      if (track.kind === 'idle') {
        c.fillStyle = this.busy;
        c.fillRect(from, y, Math.max(1, to - from), height);
      }
      x = Math.max(x, to);
    }
    this.unseen(x, width, y, height);
  }

  /** Hatches a stretch of which nothing is known. */
  unseen(from, to, y, height) {
    if (to - from < 1) return;
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(from, y, to - from, height);
    c.clip();
    c.fillStyle = this.ground;
    c.fillRect(from, y, to - from, height);
    c.strokeStyle = this.line;
    c.lineWidth = 1;
    c.beginPath();
    for (let x = from - (from % 7) - height; x < to; x += 7) {
      c.moveTo(x, y + height);
      c.lineTo(x + height, y);
    }
    c.stroke();
    c.restore();
  }

  items(track, y, height) {
    const { t } = this;
    const { from, to, scale, gutter } = t;
    let column = -1;
    for (let i = firstAfter(track, from); i < track.n && track.start[i] <= to; i++) {
      const x = gutter + (track.start[i] - from) * scale;
      const long = (track.end[i] - track.start[i]) * scale;
      if (long >= 1.5 || track.depth || track.kind === 'error') {
        this.flush(track, column, y, height);
        column = -1;
        this.item(track, i, x, long, y, height);
        continue;
      }
      const at = Math.floor(x);
      if (at !== column) {
        this.flush(track, column, y, height);
        column = at;
      }
      t.tally.add(track.label[i], long * (track.count[i] ? track.lead[i] : 1));
    }
    this.flush(track, column, y, height);
  }

  /**
   * Paints what is narrower than a pixel. Idle time stands on the busy time, as high as its share; of the rest the
   * colour is that of most of it, as dense as it is.
   */
  flush(track, x, y, height) {
    if (x < 0) return;
    const { t, context: c } = this;
    let best = -1;
    let most = 0;
    let weight = 0;
    let found = false;
    let top = y;
    t.tally.drain((label, w) => {
      weight += w;
      found ||= t.matches?.has(label) ?? false;
      if (w > most) [most, best] = [w, label];
      if (track.kind !== 'idle') return;
      c.fillStyle = t.colors[label];
      c.globalAlpha = this.faint(t.matches?.has(label));
      c.fillRect(x, top, 1, Math.max(0.4, w * height));
      top += w * height;
    });
    if (track.kind !== 'idle' && best >= 0) {
      c.globalAlpha = this.faint(found) * Math.min(1, Math.max(0.25, weight));
      c.fillStyle = t.colors[best];
      c.fillRect(x, y, 1, height);
    }
    c.globalAlpha = 1;
  }

  /** While something is searched for, the rest steps back. */
  faint(found) {
    return this.t.matches && !found ? 0.15 : 1;
  }

  item(track, i, x, long, y, height) {
    const { t, context: c } = this;
    let top = y;
    let high = height;
    if (track.depth) {
      high = height / (1 + Math.max(...[track.depth[i], Math.round(height / 18) - 1]));
      top = y + track.depth[i] * high;
    }
    const left = Math.max(x, t.gutter - 2);
    const least = track.kind === 'error' ? momentWidth : 1;
    const width = Math.max(least, Math.min(x + long, t.gutter + t.width + 2) - left - (long > 4 ? 0.6 : 0));
    const part = track.count[i] ? track.lead[i] : 1; // of several items: how much of the stretch they take
    const idle = track.kind === 'idle';
    c.globalAlpha = this.faint(t.matches?.has(track.label[i])) * (idle ? 1 : 0.3 + 0.7 * part);
    c.fillStyle = t.colors[track.label[i]];
    c.fillRect(left, top, width, idle ? high * part : high);
    c.globalAlpha = 1;
    const chosen = (s) => s && s.track === track && s.i === i;
    if (chosen(t.selected) || chosen(t.hovered)) {
      c.strokeStyle = chosen(t.selected) ? this.accent : this.ink;
      c.lineWidth = chosen(t.selected) ? 2 : 1;
      c.strokeRect(left + 0.5, top + 0.5, Math.max(1, width - 1), high - 1);
    }
    if (width > 44 && high >= 14) this.caption(track, i, left, top, width, high);
  }

  caption(track, i, x, y, width, height) {
    const { t, context: c } = this;
    const [text, cls] = t.doc.labels[track.label[i]];
    c.fillStyle = cls === 'blocked' ? this.ink : '#fff';
    if (['copy', 'cause preprocessing', 'call copy'].includes(cls)) c.fillStyle = '#1d1d1d';
    if (track.count[i]) c.fillStyle = this.ink;
    const room = Math.floor((width - 8) / 5.6);
    const words = track.count[i] ? `${track.count[i].toLocaleString('en')} × ${text}` : text;
    c.fillText(words.length > room ? `${words.slice(0, Math.max(1, room - 1))}…` : words, x + 4, y + height / 2 + 0.5);
  }

  /** Arrows from calls to their GPU work, and from those who wake to those who wait. */
  arrows(rows, width) {
    const { t } = this;
    const place = new Map(rows.filter((r) => r.track).map((r) => [r.track, r]));
    const list = [];
    for (const row of place.values()) {
      const { track } = row;
      if (track.kind !== 'gpu' && track.kind !== 'state') continue;
      for (let i = firstAfter(track, t.from); i < track.n && track.start[i] <= t.to; i++) {
        if (track.count[i] || track.lead[i] < 0) continue;
        if (list.length > maxArrows) return this.chosenArrow(place, width);
        list.push({ track, i });
      }
    }
    for (const item of list) this.arrow(item, place, false);
    this.chosenArrow(place, width);
  }

  chosenArrow(place) {
    for (const item of [this.t.hovered, this.t.selected]) if (item) this.arrow(item, place, true);
  }

  arrow(item, place, strong) {
    const { t, context: c } = this;
    const { track, i } = item;
    if (track.count[i] || track.lead[i] < 0 || (track.kind !== 'gpu' && track.kind !== 'state')) return;
    const to = place.get(track);
    const call = track.kind === 'gpu' ? t.numbered(track.lead[i]) : { track: t.waker(track, i) };
    const from = call?.track && place.get(call.track);
    if (!from || !to || from === to) return;
    const x0 = track.kind === 'gpu' ? t.x(call.track.start[call.i]) : t.x(track.end[i]);
    const x1 = track.kind === 'gpu' ? t.x(track.start[i]) : t.x(track.end[i]);
    if (Math.max(x0, x1) < t.gutter || Math.min(x0, x1) > t.gutter + t.width) return;
    const down = to.y > from.y;
    const y0 = down ? from.y + from.height : from.y;
    const y1 = down ? to.y : to.y + to.height;
    c.save();
    c.beginPath();
    c.rect(t.gutter, 0, t.width, t.height);
    c.clip();
    c.strokeStyle = c.fillStyle = strong ? this.accent : this.dim;
    c.globalAlpha = strong ? 1 : 0.45;
    c.lineWidth = strong ? 1.8 : 1;
    c.beginPath();
    c.moveTo(x0, y0);
    c.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
    c.stroke();
    c.beginPath();
    const back = down ? -5 : 5;
    c.moveTo(x1, y1);
    c.lineTo(x1 - 3, y1 + back);
    c.lineTo(x1 + 3, y1 + back);
    c.fill();
    c.restore();
  }

  /** The stretch that a finding points at, and the one that is measured. */
  marks(width, height) {
    const { t, context: c } = this;
    for (const [mark, color] of [
      [t.mark, this.accent],
      [t.measure, this.ink],
    ]) {
      if (!mark) continue;
      const a = Math.max(t.gutter, t.x(mark.from));
      const b = Math.min(width, t.x(mark.to));
      if (b < t.gutter || a > width) continue;
      c.fillStyle = color;
      c.globalAlpha = 0.09;
      c.fillRect(a, axisHeight, Math.max(1, b - a), height);
      c.globalAlpha = 1;
      c.fillRect(a, axisHeight - 5, Math.max(2, b - a), 5);
      c.fillRect(a, axisHeight, 1, height);
      c.fillRect(b, axisHeight, 1, height);
    }
  }

  /** The axis: a tick at every 1, 2 or 5 times a power of ten ns. */
  ticks(width, height) {
    const { t, context: c } = this;
    const q = t.doc.quantum;
    const least = (95 / t.scale) * q;
    const ten = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= least);
    c.textAlign = 'left';
    c.strokeStyle = this.line;
    c.fillStyle = this.dim;
    c.lineWidth = 1;
    c.beginPath();
    for (let ns = Math.ceil((t.from * q) / step) * step; ns <= t.to * q; ns += step) {
      const x = Math.round(t.x(ns / q)) + 0.5;
      c.moveTo(x, 6);
      c.lineTo(x, axisHeight - 2);
      if (x < width - 30) c.fillText(moment(ns, step), x + 4, 12);
    }
    c.moveTo(0, axisHeight - 0.5);
    c.lineTo(width, axisHeight - 0.5);
    if (t.gutter) {
      c.moveTo(t.gutter - 0.5, 0);
      c.lineTo(t.gutter - 0.5, height);
    }
    c.stroke();
  }
}
