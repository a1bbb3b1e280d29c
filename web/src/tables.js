// Tables that sort and search.

import { clear, h } from './dom.js';
import { cell, count } from './format.js';

const firstRows = 25;

/** @param {any} doc @param {(from: number, to: number, text: string) => void} lead shows a stretch of the timeline, ns */
export function tables(doc, lead) {
  if (!doc.tables.length) return null;
  const views = doc.tables.map((t) => new Table(t, lead));
  const tabs = views.map((v, i) =>
    h(
      'button',
      { type: 'button', role: 'tab', 'data-table': v.table.key, 'aria-selected': i === 0, onclick: () => choose(i) },
      v.table.title,
      h('span.count', null, count(v.table.rows.length)),
    ),
  );
  const place = h('div', null, views[0].root);
  const choose = (i) => {
    tabs.forEach((t, j) => t.setAttribute('aria-selected', i === j));
    clear(place).append(views[i].root);
    views[i].filter(search.value);
  };
  const search = h('input', {
    type: 'search',
    placeholder: 'Search the table',
    'aria-label': 'Search the table',
    oninput: () => views[tabs.findIndex((t) => t.getAttribute('aria-selected') === 'true')].filter(search.value),
  });
  return h(
    'section',
    { id: 'tables', 'aria-label': 'Tables' },
    h('h2', null, 'Numbers'),
    h('div.toolbar', null, h('div.tabs', { role: 'tablist' }, tabs), h('div.searching', null, search)),
    place,
  );
}

const left = (unit) => unit === 'text' || unit === 'code';

class Table {
  constructor(table, lead) {
    this.table = table;
    this.lead = lead;
    this.rows = table.rows;
    this.column = -1; // none: as it came
    this.up = false;
    this.all = false;
    this.body = h('tbody');
    this.heads = table.columns.map((c, i) =>
      h(
        left(c.unit) ? 'th' : 'th.number',
        { scope: 'col', 'aria-sort': 'none' },
        h('button', { type: 'button', onclick: () => this.sort(i) }, c.name.trim()),
      ),
    );
    this.more = h('button.link', { type: 'button', onclick: () => ((this.all = true), this.fill()) });
    this.none = h('p.dim', { hidden: true }, 'No row has that.');
    this.root = h(
      'div',
      null,
      h(
        'div.scroll',
        { tabindex: 0, role: 'region', 'aria-label': table.title },
        h('table', null, h('thead', null, h('tr', null, this.heads)), this.body),
      ),
      this.none,
      this.more,
      table.note ? h('p.dim', null, table.note) : null,
    );
    this.most = table.columns.map((c, i) => (c.unit === 'share' ? Math.max(...table.rows.map((r) => r[i] ?? 0)) : 0));
    this.fill();
  }

  /** Numbers the most first, texts from A to Z; the same column again the other way round. */
  sort(i) {
    const { unit } = this.table.columns[i];
    this.up = this.column === i ? !this.up : left(unit);
    this.column = i;
    this.heads.forEach((th, j) =>
      th.setAttribute('aria-sort', i === j ? (this.up ? 'ascending' : 'descending') : 'none'),
    );
    this.fill();
  }

  filter(query) {
    const text = query.trim().toLowerCase();
    this.rows = text
      ? this.table.rows.filter((r) => r.some((v) => typeof v === 'string' && v.toLowerCase().includes(text)))
      : this.table.rows;
    this.fill();
  }

  sorted() {
    const { column: i, up } = this;
    if (i < 0) return this.rows;
    const way = up ? 1 : -1;
    return [...this.rows].sort((a, b) => {
      const [x, y] = [a[i], b[i]];
      if (x === null || y === null) return (x === null) - (y === null);
      return typeof x === 'string' ? way * x.localeCompare(y, 'en', { numeric: true }) : way * (x - y);
    });
  }

  fill() {
    const rows = this.sorted();
    const shown = this.all ? rows : rows.slice(0, firstRows);
    clear(this.body).append(
      ...shown.map((r) =>
        h(
          'tr',
          null,
          r.map((v, i) => this.cell(v, i, r)),
        ),
      ),
    );
    this.more.hidden = shown.length === rows.length;
    this.more.textContent = `Show all ${count(rows.length)} rows`;
    this.none.hidden = rows.length > 0;
  }

  cell(value, i, row) {
    const { unit } = this.table.columns[i];
    // A time in the window leads there: the first column is how long it takes.
    if (unit === 'at')
      return h(
        'td.number',
        null,
        h(
          'button.link',
          {
            type: 'button',
            title: 'Show it in the timeline',
            onclick: () => this.lead(value, value + row[0], row[row.length - 1]),
          },
          cell(value, 'ns'),
        ),
      );
    const text = cell(value, unit);
    if (unit === 'code') return h('td.code', { title: text.length > 60 ? text : null }, h('span', null, text));
    const td = h(left(unit) ? 'td' : 'td.number', null, text);
    if (this.most[i] > 0 && value > 0) td.style.backgroundSize = `${(100 * value) / this.most[i]}% 2px`;
    return td;
  }
}
