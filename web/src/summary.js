// The head of the page: the verdict, what it rests on, and where the time went.

import { h } from './dom.js';
import { percent, span } from './format.js';

/** @param {any} doc @param {import('./theme.js').Theme} theme */
export function summary(doc, theme) {
  return h(
    'section.summary',
    { id: 'summary', 'aria-label': 'Summary' },
    h(
      `div.verdict.${doc.mood}`,
      null,
      h('h1', null, doc.verdict),
      doc.headline && doc.headline !== doc.verdict ? h('p.headline', null, doc.headline) : null,
      doc.notes.length
        ? h(
            'ul.notes',
            null,
            doc.notes.map((n) => h('li', null, n)),
          )
        : null,
    ),
    h(
      'dl.facts',
      null,
      doc.facts.map((f) => h('div', null, h('dt', null, f.label), h('dd', null, f.value))),
    ),
    breakdown(doc, theme),
  );
}

function breakdown(doc, theme) {
  if (!doc.view.length) return null;
  const rows = [bar('By cause', doc.parts, doc, theme)];
  if (doc.devices.length > 1) doc.devices.forEach((d, i) => rows.push(bar(`GPU ${i}: ${d.name}`, d.parts, doc, theme)));
  const title = doc.devices.length > 1 ? 'The same time by cause, and of each GPU' : 'The same time by cause';
  return h(
    'div.breakdown',
    null,
    bar(doc.went, doc.view, doc, theme),
    h('details', null, h('summary', null, title), rows),
  );
}

/** A bar of shares with its legend, which has the numbers. */
function bar(title, parts, doc, theme) {
  const segments = [];
  const swatches = [];
  for (const p of parts) {
    const text = `${p.name || p.key}: ${span(p.ns)}, ${percent(p.share)}`;
    const segment = h(`span.segment${p.busy ? '.busy' : ''}`, { title: text });
    segment.style.flexGrow = String(Math.max(p.share, 0.002));
    segments.push([segment, p]);
    const swatch = h('i.swatch');
    swatches.push([swatch, p]);
  }
  const paint = () => {
    for (const [el, p] of [...segments, ...swatches]) el.style.background = theme.part(p.key);
  };
  theme.onChange(paint);
  paint();
  return h(
    'figure.bar',
    null,
    h('figcaption', null, title),
    h(
      'div.segments',
      { role: 'img', 'aria-label': `${title}: ${parts.map((p) => `${p.name} ${percent(p.share)}`).join(', ')}` },
      segments.map(([s]) => s),
    ),
    h(
      'ul.legend',
      null,
      parts.map((p, i) =>
        h(
          'li',
          null,
          swatches[i][0],
          h('span.name', null, p.name || p.key),
          h('span.number', null, percent(p.share)),
          h('span.number.dim', null, time(p, doc)),
        ),
      ),
    ),
  );
}

function time(p, doc) {
  if (!doc.iteration) return span(p.ns);
  return `${span(p.ns)}; ${span(p.share * doc.iteration)} of each iteration`;
}
