// What-if: sliders over outcomes that a replay of the recording worked out.

import { h } from './dom.js';
import { percent } from './format.js';

/** @param {any} doc */
export function whatIf(doc) {
  const rows = doc.whatif?.rows?.filter((r) => r.points.length) ?? [];
  if (!rows.length) return null;
  return h(
    'section',
    { id: 'whatif', 'aria-label': 'What if' },
    h('h2', null, 'How much faster it would be'),
    h('p.dim', null, 'What one change brings, by itself. ', doc.whatif.note),
    h(
      'div.cards',
      null,
      rows.map((r, n) => (r.points.length > 1 ? slider(r, n) : fixed(r))),
    ),
  );
}

/** Of some changes only the whole can be replayed. */
function fixed(row) {
  const p = row.points[0];
  return h(
    'div.card.whatif',
    null,
    h('p.name', null, row.title),
    h('p', null, h('strong.gain', null, gain(p)), ' ', h('span.dim', null, range(p))),
  );
}

/** Beyond this nothing is predicted: see most in internal/analysis/whatif. */
const most = 1000;

const times = (x) => (x >= most ? `over ${most}` : x >= 20 ? x.toFixed(0) : x >= 5 ? x.toFixed(1) : x.toFixed(2));

/** Beyond so many times its lower end an interval is too wide for a number: see widest in internal/analysis/whatif. */
const widest = 3;

/** Only the lower end says anything. */
const vague = (p) => p.high > widest * p.low;

/** Nor does that, where it is no gain. */
const unknown = (p) => vague(p) && p.low < 1.01;

const gain = (p) =>
  unknown(p) ? 'nothing certain' : vague(p) ? `at least ${times(p.low)} × as fast` : `${times(p.speedup)} × as fast`;

const range = (p) =>
  vague(p)
    ? 'how much more cannot be told from this recording'
    : `between ${times(p.low)} and ${times(p.high)} ×; a step takes ${percent(1 / p.speedup)} of its time`;

function slider(row, n) {
  const points = [{ removed: 0, speedup: 1, low: 1, high: 1 }, ...row.points.filter((p) => p.removed > 0)];
  const big = h('strong.gain');
  const small = h('span.dim');
  const id = `whatif-${n}`;
  const input = h('input', { id, type: 'range', min: 0, max: 100, step: 5, value: 100, oninput: () => update() });
  const update = () => {
    const p = between(points, input.value / 100);
    big.textContent = gain(p);
    small.textContent = input.value === '0' ? 'as recorded' : range(p);
    input.setAttribute('aria-valuetext', `${input.value}% taken away: ${big.textContent}`);
    out.textContent = `${input.value}%`;
  };
  const out = h('output', { for: id });
  update();
  return h(
    'div.card.whatif',
    null,
    h('label', { for: id }, row.title),
    h('div.slide', null, input, out),
    h('p', null, big, ' ', small),
  );
}

/** The outcome at a strength: those on both sides of it, in proportion. */
function between(points, removed) {
  const i = points.findIndex((p) => p.removed >= removed - 1e-9);
  if (i < 0) return points[points.length - 1];
  if (i === 0) return points[0];
  const [a, b] = [points[i - 1], points[i]];
  const part = (removed - a.removed) / (b.removed - a.removed);
  // Times, not speeds, change in proportion to the work that goes.
  const mix = (x, y) => 1 / (1 / x + (1 / y - 1 / x) * part);
  return { speedup: mix(a.speedup, b.speedup), low: mix(a.low, b.low), high: mix(a.high, b.high) };
}
