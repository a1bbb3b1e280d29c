// Flame graphs: callers above, what they called below them.

import { clear, h } from './dom.js';
import { count, percent, span } from './format.js';

const rowHeight = 18;

/** @param {any} doc @param {any[]} flames @param {import('./theme.js').Theme} theme */
export function flameGraphs(doc, flames, theme) {
  if (!flames.length) return null;
  const graph = new Flame(doc, theme);
  const tabs = flames.map((f, i) =>
    h('button', { type: 'button', role: 'tab', 'aria-selected': i === 0, onclick: () => choose(i) }, f.title),
  );
  const choose = (i) => {
    tabs.forEach((t, j) => t.setAttribute('aria-selected', i === j));
    graph.set(flames[i]);
  };
  graph.set(flames[0]);
  const search = h('input', {
    type: 'search',
    placeholder: 'Search functions',
    'aria-label': 'Search the flame graph',
    oninput: () => graph.find(search.value),
  });
  return h(
    'section',
    { id: 'flames', 'aria-label': 'Flame graphs' },
    h('h2', null, 'Where the CPU time went'),
    h('div.toolbar', null, h('div.tabs', { role: 'tablist' }, tabs), h('div.searching', null, graph.threads, search, graph.found)),
    graph.note,
    graph.path,
    h('div.flame', null, graph.canvas),
    graph.tip,
  );
}

class Flame {
  constructor(doc, theme) {
    this.doc = doc;
    this.theme = theme;
    this.canvas = h('canvas', {
      role: 'img',
      'aria-label': 'Flame graph; the tables of functions have the same numbers',
    });
    this.context = this.canvas.getContext('2d');
    this.note = h('p.dim');
    this.path = h('p.crumbs');
    this.found = h('span.found');
    this.tip = h('div.tip', { hidden: true });
    this.query = '';
    this.threads = h('select', { 'aria-label': 'Thread', onchange: () => this.zoom(this.root(this.threads.value)) });
    this.canvas.addEventListener('pointermove', (e) => this.hover(e));
    this.canvas.addEventListener('pointerleave', () => (this.tip.hidden = true));
    this.canvas.addEventListener('click', (e) => this.zoom(this.at(e)));
    theme.onChange(() => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.canvas);
  }

  set(flame) {
    this.flame = flame;
    const { n, parent, total } = flame;
    this.children = Array.from({ length: n }, () => []);
    this.roots = [];
    this.all = 0;
    for (let i = 0; i < n; i++) {
      if (parent[i] < 0) {
        this.roots.push(i);
        this.all += total[i];
      } else this.children[parent[i]].push(i);
    }
    for (const list of [this.roots, ...this.children]) list.sort((a, b) => total[b] - total[a]);
    const left = flame.left ? ` ${count(flame.left)} frames that are too narrow to be seen are left out.` : '';
    this.note.textContent = `${flame.note} ${this.amount(this.all)} in all.${left} Click a frame to zoom to it.`;
    const thread = this.threads.value;
    const options = this.roots.map((i) => h('option', { value: this.text(i) }, this.text(i)));
    clear(this.threads).append(h('option', { value: '' }, 'All threads'), ...options);
    this.zoom(this.root(thread));
    this.find(this.query);
  }

  /** What the threads of a name did; -1 where none is called so. */
  root(name) {
    return this.roots.find((i) => this.text(i) === name) ?? -1;
  }

  amount(n) {
    return this.flame.unit === 'ns' ? span(n) : `${count(n)} ${n === 1 ? 'sample' : 'samples'}`;
  }

  text(i) {
    return this.doc.frames[this.flame.frame[i]][0];
  }

  zoom(i) {
    this.top = i ?? -1;
    clear(this.path);
    const crumbs = [];
    this.threads.value = '';
    for (let j = this.top; j >= 0; j = this.flame.parent[j]) {
      const to = j;
      this.threads.value = this.text(j); // the last one is the thread
      crumbs.unshift(h('button.link', { type: 'button', onclick: () => this.zoom(to) }, this.text(j)));
    }
    if (crumbs.length)
      this.path.append(
        h('button.link', { type: 'button', onclick: () => this.zoom(-1) }, 'all'),
        ...crumbs.slice(-4).flatMap((c) => [' › ', c]),
      );
    this.place();
    this.paint();
  }

  /** Works out the boxes: {i, from, to, depth} with parts of the width. */
  place() {
    this.boxes = [];
    this.deepest = 0;
    const whole = this.top < 0 ? this.all : this.flame.total[this.top];
    const stack = [];
    const push = (list, from, depth) => {
      for (const i of list) {
        const to = from + this.flame.total[i] / whole;
        if (to - from > 0.0004) stack.push({ i, from, to, depth });
        from = to;
      }
    };
    push(this.top < 0 ? this.roots : [this.top], 0, 0);
    while (stack.length) {
      const box = stack.pop();
      this.boxes.push(box);
      this.deepest = Math.max(this.deepest, box.depth);
      push(this.children[box.i], box.from, box.depth + 1);
    }
  }

  paint() {
    const { context: c, canvas } = this;
    const width = canvas.parentElement?.clientWidth ?? 0;
    if (!width) return;
    const height = (this.deepest + 1) * rowHeight;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.font = '11px system-ui, sans-serif';
    c.textBaseline = 'middle';
    for (const b of this.boxes) this.box(b, width);
  }

  box({ i, from, to, depth }, width) {
    const { context: c } = this;
    const [text, kind] = this.doc.frames[this.flame.frame[i]];
    const x = from * width;
    const wide = (to - from) * width;
    const hit = this.query && text.toLowerCase().includes(this.query);
    c.globalAlpha = this.query && !hit ? 0.3 : 1;
    c.fillStyle = hit ? this.theme.css('--hit') : this.theme.frame(kind);
    c.fillRect(x, depth * rowHeight, Math.max(0.6, wide - 0.7), rowHeight - 1);
    if (wide > 32) {
      c.fillStyle = hit ? '#1d1d1d' : kind === 'python' && !this.theme.dark ? '#2b1d05' : '#fff';
      const needed = c.measureText(text).width;
      const room = needed <= wide - 6 ? text.length : Math.floor((text.length * (wide - 6)) / needed) - 1;
      c.fillText(
        text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text,
        x + 3,
        depth * rowHeight + rowHeight / 2,
      );
    }
    c.globalAlpha = 1;
  }

  at(e) {
    const x = e.offsetX / this.canvas.clientWidth;
    const depth = Math.floor(e.offsetY / rowHeight);
    return this.boxes.find((b) => b.depth === depth && x >= b.from && x < b.to)?.i;
  }

  hover(e) {
    const i = this.at(e);
    this.canvas.style.cursor = i === undefined ? 'default' : 'pointer';
    this.tip.hidden = i === undefined;
    if (i === undefined) return;
    this.tip.textContent = `${this.text(i)}: ${this.amount(this.flame.total[i])}, ${percent(this.flame.total[i] / this.all)}`;
    this.tip.style.left = `${Math.min(e.clientX + 14, Math.max(4, document.documentElement.clientWidth - this.tip.offsetWidth - 8))}px`;
    this.tip.style.top = `${e.clientY + 18}px`;
  }

  /** Marks functions, and says for how much of the time they were on a stack. */
  find(query) {
    this.query = query.trim().toLowerCase();
    this.found.textContent = '';
    if (this.query) {
      let n = 0;
      const stack = [...this.roots];
      while (stack.length) {
        const i = stack.pop();
        if (this.text(i).toLowerCase().includes(this.query)) n += this.flame.total[i];
        else stack.push(...this.children[i]);
      }
      this.found.textContent = `on the stack for ${percent(n / this.all)}`;
    }
    this.paint();
  }
}
