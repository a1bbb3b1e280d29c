// The timeline: what it shows of the recording, and how a person moves in it. draw.js paints it.

import { clear, h } from './dom.js';
import { firstAfter, Tally } from './data.js';
import { Painter } from './draw.js';
import { count, percent, span } from './format.js';
import { Overview } from './overview.js';
import { listen } from './input.js';
import { notes } from './notes.js';

/** Heights of tracks in CSS pixels, by kind. */
const heights = { idle: 30, gpu: 24, call: 22, state: 12, range: 18, request: 18, sensor: 14, error: 14 };
const headHeight = 24;
const wideGutter = 190;
const narrowBelow = 720;
/** The shortest stretch that can be shown, in units of time. */
const shortest = 16;

export class Timeline {
  /** @param {{doc: any, tracks: import('./data.js').Track[]}} data @param {import('./theme.js').Theme} theme */
  constructor({ doc, tracks }, theme) {
    this.doc = doc;
    this.tracks = tracks;
    this.theme = theme;
    this.length = Math.max(1, doc.length / doc.quantum);
    this.from = 0;
    this.to = this.length;
    this.selected = null; // {track, i}
    this.hovered = null;
    this.mark = null; // {from, to}: the evidence that is looked at
    this.matches = null; // Set of labels
    this.counts = null; // items by label
    this.spans = doc.spans.map((list) => list.map((ns) => ns / doc.quantum));
    this.idle = tracks.filter((t) => t.kind === 'idle');
    this.causes = doc.labels.map(([, cls]) => (cls.startsWith('cause ') ? cls.slice(6).replaceAll('-', ' ') : ''));
    this.tally = new Tally(doc.labels.length);
    this.build();
    this.layout();
  }

  build() {
    this.canvas = h('canvas', {
      tabindex: 0,
      'aria-label': 'Timeline. Keys: w and s zoom, a and d move, 0 shows all, / searches.',
      role: 'img',
    });
    this.spacer = h('div.spacer');
    this.port = h('div.port', null, this.spacer, this.canvas);
    this.tip = h('div.tip', { hidden: true });
    this.status = h('p.status', { role: 'status', 'aria-live': 'polite' });
    this.detail = h('div.detail', { 'aria-live': 'polite' });
    this.search = h('input', {
      type: 'search',
      placeholder: 'Search names ( / )',
      'aria-label': 'Search the timeline',
      oninput: () => this.find(this.search.value),
      onkeydown: (e) => this.searchKey(e),
    });
    this.found = h('span.found');
    this.overview = new Overview(this);
    this.painter = new Painter(this);
    const button = (text, label, f) =>
      h('button', { type: 'button', title: label, 'aria-label': label, onclick: f }, text);
    this.root = h(
      'section',
      { id: 'timeline', 'aria-label': 'Timeline' },
      h('h2', null, 'Timeline'),
      h(
        'div.toolbar',
        null,
        h(
          'div.buttons',
          null,
          button('−', 'Zoom out (s)', () => this.zoom(2)),
          button('+', 'Zoom in (w)', () => this.zoom(0.5)),
          button('←', 'Move left (a)', () => this.pan(-0.3)),
          button('→', 'Move right (d)', () => this.pan(0.3)),
          button('All', 'Show all (0)', () => this.show(0, this.length)),
        ),
        h(
          'div.searching',
          null,
          this.search,
          button('‹', 'Previous match', () => this.nextMatch(-1)),
          button('›', 'Next match (Enter)', () => this.nextMatch(1)),
          this.found,
        ),
      ),
      this.overview.canvas,
      this.port,
      this.status,
      this.detail,
      notes(this.doc, this.tracks),
      this.tip,
    );
    listen(this);
    const color = () => (this.colors = this.doc.labels.map((l) => this.theme.label(l)));
    color();
    this.theme.onChange(() => (color(), this.draw()));
    new ResizeObserver(() => this.draw()).observe(this.port);
    this.port.addEventListener('scroll', () => this.draw());
  }

  /** Places the tracks: rows are heads of groups and tracks, from top to bottom. */
  layout() {
    this.rows = [];
    let y = 0;
    let group = null;
    for (const track of this.tracks) {
      if (track.group !== group) {
        group = track.group;
        this.rows.push({ head: group, y, height: headHeight });
        y += headHeight;
      }
      const height = heights[track.kind] * (track.depth ? 1 + Math.max(...track.depth) : 1);
      this.rows.push({ track, y, height });
      y += height + (track.kind === 'state' || track.kind === 'range' || track.kind === 'request' ? 1 : 4);
    }
    this.height = y + 6;
  }

  get gutter() {
    return this.port.clientWidth < narrowBelow ? 0 : wideGutter;
  }

  /** Width of what is between the names and the right edge, CSS pixels. */
  get width() {
    return Math.max(10, this.port.clientWidth - this.gutter);
  }

  get scale() {
    return this.width / (this.to - this.from);
  }

  x(at) {
    return this.gutter + (at - this.from) * this.scale;
  }

  timeAt(x) {
    return this.from + (x - this.gutter) / this.scale;
  }

  /** Shows a stretch, in units of time, as far as there is one. */
  show(from, to) {
    const length = Math.min(this.length, Math.max(shortest, to - from));
    this.from = Math.max(0, Math.min(from, this.length - length));
    this.to = this.from + length;
    this.draw();
  }

  /** Shows factor times as much, with the time at x where it was. */
  zoom(factor, x = this.gutter + this.width / 2) {
    const at = this.timeAt(x);
    const length = Math.min(this.length, Math.max(shortest, (this.to - this.from) * factor));
    const part = (at - this.from) / (this.to - this.from);
    this.show(at - part * length, at + (1 - part) * length);
  }

  /** Moves by a part of what is shown. */
  pan(part) {
    const by = part * (this.to - this.from);
    const from = Math.max(0, Math.min(this.from + by, this.length - (this.to - this.from)));
    this.show(from, from + (this.to - this.from));
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.painter.paint();
      this.overview.paint();
      this.describe();
    });
  }

  /** Says what is shown, and how idle the GPU was in it. */
  describe() {
    const shown = (this.to - this.from) * this.doc.quantum;
    let text =
      shown >= this.doc.length * 0.999 ? `All ${span(this.doc.length)}` : `${span(shown)} of ${span(this.doc.length)}`;
    const { seen, by, main } = this.shares(this.from, this.to);
    const idle = [...by.values()].reduce((a, b) => a + b, 0);
    if (seen > 0) {
      const top = [...by].sort((a, b) => b[1] - a[1]).slice(0, 3);
      // Neighbours drawn as one block have the name of what took most of it: whose the rest is, is not known here.
      const exact = main || !this.doc.merged;
      const of = top
        .filter(([, t]) => t / seen >= 0.001)
        .map(([name, t]) => (exact ? `${name} ${percent(t / seen)}` : name));
      const head = main ? 'main thread' : `GPU idle ${percent(idle / seen)}`;
      text += ` · ${head}${of.length ? `: ${exact ? '' : 'mostly '}${of.join(', ')}` : ''}`;
      if (!main && seen < (this.to - this.from) * 0.995 * this.idle.length)
        text += ` (of the ${span(seen * this.doc.quantum)} that were recorded)`;
    } else if (this.idle.length) {
      text += ' · GPU activity was not recorded here';
    }
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  /** Idle time by cause between two times, of all devices. */
  shares(from, to) {
    const by = new Map();
    let seen = 0;
    let main = false;
    for (const track of this.idle) {
      main ||= track.seen < 0;
      seen += this.seen(track, from, to);
      for (let i = firstAfter(track, from); i < track.n && track.start[i] < to; i++) {
        this.tally.add(
          track.label[i],
          (Math.min(to, track.end[i]) - Math.max(from, track.start[i])) * (track.count[i] ? track.lead[i] : 1),
        );
      }
    }
    this.tally.drain((label, time) => by.set(this.causes[label], (by.get(this.causes[label]) ?? 0) + time));
    return { seen, by, main };
  }

  /** How much of a stretch was recorded of a track. */
  seen(track, from, to) {
    if (track.seen < 0) return to - from;
    const list = this.spans[track.seen];
    let n = 0;
    for (let i = 0; i < list.length; i += 2) n += Math.max(0, Math.min(to, list[i + 1]) - Math.max(from, list[i]));
    return n;
  }

  /** The item at a place of the canvas, or null. */
  at(x, y) {
    if (x < this.gutter) return null;
    const row = this.rows.find((r) => y >= r.y && y < r.y + r.height);
    if (!row?.track) return null;
    const { track } = row;
    const at = this.timeAt(x);
    const slack = 2.5 / this.scale;
    const depth = track.depth ? Math.floor((y - row.y) / heights.range) : -1;
    let best = null;
    let nearest = slack;
    for (let i = firstAfter(track, at - slack); i < track.n && track.start[i] <= at + slack; i++) {
      if (depth >= 0 && track.depth[i] !== depth) continue;
      const off = Math.max(0, track.start[i] - at, at - track.end[i]);
      if (off <= nearest) {
        best = { track, i };
        nearest = off;
      }
    }
    return best;
  }

  text({ track, i }) {
    return this.doc.labels[track.label[i]][0];
  }

  /** What is said of an item in a line. */
  words(item) {
    const { track, i } = item;
    const q = this.doc.quantum;
    const long = (track.end[i] - track.start[i]) * q;
    if (track.count[i])
      return `${count(track.count[i])} items in ${span(long)}, ${percent(track.lead[i])} of it; mostly ${this.text(item)}`;
    if (track.kind === 'error') return this.text(item);
    return long > 0 ? `${span(long)} · ${this.text(item)}` : `${this.text(item)} (its duration was not recorded)`;
  }

  select(item) {
    this.selected = item;
    this.draw();
    clear(this.detail);
    if (item) this.detail.append(...this.describeItem(item));
  }

  describeItem(item) {
    const { track, i } = item;
    const q = this.doc.quantum;
    const cls = this.doc.labels[track.label[i]][1];
    const facts = [
      ['On', `${track.group}, ${track.name}`],
      ['Begins', `${span(track.start[i] * q)} into the window`],
      [track.count[i] ? 'Together' : 'Takes', this.words(item)],
    ];
    const cause = cls.startsWith('cause ') ? this.doc.causes.find((c) => c.key === cls.slice(6)) : null;
    if (cause) facts.push(['That means', cause.means]);
    const link = this.linked(item);
    const buttons = [h('button', { type: 'button', onclick: () => this.reveal(item) }, 'Zoom to it')];
    if (link) {
      facts.push([link.words, `${this.words(link.item)} on ${link.item.track.group}`]);
      buttons.push(
        h(
          'button',
          { type: 'button', onclick: () => (this.reveal(link.item), this.select(link.item)) },
          `Go to ${link.short}`,
        ),
      );
    }
    return [
      h('h3', null, this.text(item)),
      h(
        'dl.facts.small',
        null,
        facts.map(([k, v]) => h('div', null, h('dt', null, k), h('dd', null, v))),
      ),
      h('div.actions', null, buttons),
    ];
  }

  /** What an item leads to: GPU work to its call, a wait to the thread that ended it. */
  linked({ track, i }) {
    if (track.count[i] || track.lead[i] < 0) return null;
    if (track.kind === 'gpu') {
      const item = this.numbered(track.lead[i]);
      return item && { item, words: 'Asked for by', short: 'its call' };
    }
    if (track.kind !== 'state') return null;
    const to = this.waker(track, i);
    if (!to) return null;
    const j = firstAfter(to, track.end[i] - 1);
    return j < to.n ? { item: { track: to, i: Math.max(0, j) }, words: 'Woken by', short: 'who woke it' } : null;
  }

  /** The states of the thread that ended a wait. */
  waker(track, i) {
    this.wakers ??= this.threadStates();
    return this.wakers[track.lead[i]] ?? null;
  }

  /** Tracks of states, in the order in which threads are numbered. */
  threadStates() {
    const order = new Map();
    for (const t of this.tracks) {
      if (t.kind !== 'state' && t.kind !== 'call') continue;
      const key = `${t.pid} ${t.tid}`;
      if (!order.has(key)) order.set(key, null);
      if (t.kind === 'state') order.set(key, t);
    }
    return [...order.values()];
  }

  /** The item with a number of the numbering of all. */
  numbered(n) {
    const track = this.tracks.find((t) => n >= t.base && n < t.base + t.n);
    return track ? { track, i: n - track.base } : null;
  }

  /** Shows an item with what is around it. */
  reveal({ track, i }) {
    const long = Math.max(shortest, track.end[i] - track.start[i]);
    this.show(track.start[i] - 2 * long, track.end[i] + 2 * long);
    this.scrollTo(track);
  }

  scrollTo(track) {
    const row = this.rows.find((r) => r.track === track);
    if (!row) return;
    const { scrollTop, clientHeight } = this.port;
    const top = row.y - headHeight;
    if (top < scrollTop || row.y + row.height + this.painter.axis > scrollTop + clientHeight)
      this.port.scrollTop = Math.max(0, top - clientHeight / 3);
  }

  /** Leads to the evidence of a finding; times in ns. */
  jump(from, to, finding, text) {
    const q = this.doc.quantum;
    this.mark = { from: from / q, to: to / q };
    const around = Math.max(shortest, (this.mark.to - this.mark.from) * 0.6);
    this.show(this.mark.from - around, this.mark.to + around);
    const idle = this.idle.find((t) => {
      const i = firstAfter(t, this.mark.from);
      return i < t.n && t.start[i] < this.mark.to;
    });
    this.selected = null;
    clear(this.detail).append(h('h3', null, finding.title), h('p', null, text));
    const track = idle ?? this.tracks.find((t) => finding.tid && t.tid === finding.tid);
    if (track) this.scrollTo(track);
    this.root.scrollIntoView({
      behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth',
      block: 'start',
    });
    this.canvas.focus({ preventScroll: true });
  }

  /** Leads to a request of the tables; times in ns. */
  lead(from, to, text) {
    this.jump(from, to, { title: 'Request' }, text);
    const at = Math.round(from / this.doc.quantum);
    for (const track of this.tracks.filter((t) => t.kind === 'request')) {
      const i = firstAfter(track, at);
      if (i >= track.n || Math.abs(track.start[i] - at) > 1 || track.count[i]) continue;
      this.select({ track, i });
      this.scrollTo(track);
      return;
    }
  }

  find(query) {
    const text = query.trim().toLowerCase();
    this.matches = null;
    this.found.textContent = '';
    if (text) {
      this.matches = new Set();
      this.doc.labels.forEach(([name], i) => name.toLowerCase().includes(text) && this.matches.add(i));
      this.counts ??= this.countLabels();
      let n = 0;
      for (const i of this.matches) n += this.counts[i];
      this.found.textContent = n === 1 ? '1 match' : `${count(n)} matches`;
    }
    this.draw();
  }

  countLabels() {
    const n = new Float64Array(this.doc.labels.length);
    for (const t of this.tracks) for (let i = 0; i < t.n; i++) n[t.label[i]] += Math.max(1, t.count[i]);
    return n;
  }

  searchKey(e) {
    if (e.key === 'Enter') this.nextMatch(e.shiftKey ? -1 : 1);
    else if (e.key === 'Escape') {
      this.search.value = '';
      this.find('');
      this.canvas.focus({ preventScroll: true });
    }
  }

  /** Selects the next match in time, or the one before. */
  nextMatch(way) {
    if (!this.matches?.size) return;
    const chosen = this.selected && this.matches.has(this.selected.track.label[this.selected.i]) ? this.selected : null;
    const at = chosen ? chosen.track.start[chosen.i] : way > 0 ? this.from : this.to;
    let best = null;
    for (const track of this.tracks) {
      const i = this.matchOn(track, at, way, chosen);
      if (i >= 0 && (!best || way * (track.start[i] - best.track.start[best.i]) < 0)) best = { track, i };
    }
    if (!best) {
      this.found.textContent = way > 0 ? 'no later match' : 'no earlier match';
      return;
    }
    this.select(best);
    const start = best.track.start[best.i];
    const length = this.to - this.from;
    if (start < this.from || start > this.to) this.show(start - length / 2, start + length / 2);
    this.scrollTo(best.track);
  }

  matchOn(track, at, way, chosen) {
    let i = firstAfter(track, at);
    if (way < 0) {
      for (i = Math.min(i, track.n - 1); i >= 0; i--)
        if (track.start[i] < at && this.matches.has(track.label[i])) return i;
      return -1;
    }
    for (; i < track.n; i++) {
      if (!this.matches.has(track.label[i]) || track.start[i] < at) continue;
      if (chosen && (track.start[i] > at || this.tracks.indexOf(track) > this.tracks.indexOf(chosen.track))) return i;
      if (!chosen) return i;
    }
    return -1;
  }
}
