// What to change: each finding with its evidence and what to change.

import { copy, h } from './dom.js';
import { percent } from './format.js';

/**
 * @param {any} doc @param {import('./theme.js').Theme} theme
 * @param {(from: number, to: number, finding: any, text: string) => void} show leads to a stretch of the timeline, ns
 */
export function findings(doc, theme, show) {
  const list = doc.findings;
  const body = list.length
    ? list.map((f, i) => card(f, i, theme, show))
    : h('p.dim', null, 'Nothing was found that is worth a change.');
  return h(
    'section',
    { id: 'findings', 'aria-label': 'Findings' },
    h('h2', null, doc.heading),
    h('div.cards', null, body),
  );
}

function card(f, i, theme, show) {
  const meter = h('span.fill');
  meter.style.width = `${Math.min(100, 100 * f.share)}%`;
  const paint = () => (meter.style.background = theme.part(f.cause));
  theme.onChange(paint);
  paint();
  const first = f.evidence.find((e) => e.to > e.from);
  const change = f.changes[0];
  return h(
    'article.card.finding',
    { id: `finding-${i + 1}` },
    h('header', null, h('span.rank', null, String(i + 1)), h('h3', null, f.title)),
    h('div.meter', { role: 'img', 'aria-label': `${percent(f.share)} of the time` }, meter),
    h('p.cost', null, h('strong', null, upper(f.cost)), ', ', f.sure, f.gain ? h(`span.gain${f.open ? '.open' : ''}`, null, f.gain) : null),
    change ? h('p.change', null, h('span.where', null, change.where), change.text) : null,
    h(
      'div.actions',
      null,
      first
        ? h(
            'button.primary',
            { type: 'button', 'data-jump': i, onclick: () => show(first.from, first.to, f, first.text) },
            'Show it in the timeline',
          )
        : null,
    ),
    h('details', null, h('summary', null, 'Evidence and fixes'), facts(f), evidence(f, show), changes(f)),
  );
}

const upper = (s) => s.charAt(0).toUpperCase() + s.slice(1);

function facts(f) {
  return h(
    'dl.facts.small',
    null,
    f.facts.map((x) => h('div', null, h('dt', null, x.label), h('dd', null, x.value))),
  );
}

function evidence(f, show) {
  if (!f.evidence.length) return null;
  return [
    h('h4', null, 'Evidence'),
    h(
      'ul.evidence',
      null,
      f.evidence.map((e) =>
        h(
          'li',
          null,
          h('span', null, e.text),
          e.to > e.from
            ? h('button.link', { type: 'button', onclick: () => show(e.from, e.to, f, e.text) }, 'show')
            : null,
          e.stack?.length
            ? h(
                'ol.stack',
                null,
                e.stack.map((s) => h('li', null, s)),
              )
            : null,
        ),
      ),
    ),
  ];
}

function changes(f) {
  if (!f.changes.length) return null;
  return [
    h('h4', null, 'What to change'),
    h(
      'ol.changes',
      null,
      f.changes.map((c) => h('li', null, c.where ? h('span.where', null, c.where) : null, c.text, example(c.example))),
    ),
  ];
}

function example(code) {
  if (!code) return null;
  const button = h('button.link', { type: 'button', onclick: () => copy(code, button) }, 'copy');
  return h('div.code', null, button, h('pre', { tabindex: 0 }, h('code', null, code)));
}
