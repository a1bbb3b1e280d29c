// Puts the page together.

import { read, unpack } from './data.js';
import { clear, h } from './dom.js';
import { findings } from './findings.js';
import { flameGraphs } from './flame.js';
import { keys } from './input.js';
import { summary } from './summary.js';
import { tables } from './tables.js';
import { Theme } from './theme.js';
import { Timeline } from './timeline.js';
import { whatIf } from './whatif.js';

const theme = new Theme();

function header(doc, sections) {
  const names = {
    findings: 'Findings',
    timeline: 'Timeline',
    whatif: 'What if',
    flames: 'Flame graphs',
    tables: 'Numbers',
    doubts: 'Losses',
  };
  const toggle = h('button', { type: 'button', id: 'theme', onclick: () => theme.toggle() });
  const name = () => {
    toggle.textContent = theme.dark ? 'Light' : 'Dark';
    toggle.setAttribute('aria-label', `Change to ${theme.dark ? 'light' : 'dark'} colours`);
  };
  theme.onChange(name);
  name();
  return h(
    'header.top',
    null,
    h('a.brand', { href: '#summary' }, 'InferScope'),
    h(
      'nav',
      { 'aria-label': 'Sections' },
      sections.map((s) => h('a', { href: `#${s.id}` }, names[s.id] ?? s.id)),
    ),
    toggle,
  );
}

function doubts(doc) {
  return h(
    'section',
    { id: 'doubts', 'aria-label': 'Losses and doubts' },
    h('h2', null, 'Losses and doubts'),
    doc.doubts.length
      ? h(
          'ul.doubts',
          null,
          doc.doubts.map((d) =>
            h(
              `li.${d.severity}`,
              null,
              h('strong', null, d.severity),
              ` ${d.means}`,
              d.count > 1 ? ` (${d.count.toLocaleString('en')} times)` : '',
              d.where?.length ? ` ${d.where.join(', ')}` : '',
              d.do ? h('p.dim', null, d.do) : null,
            ),
          ),
        )
      : h('p.dim', null, 'No losses are known.'),
  );
}

async function start() {
  const began = performance.now();
  const data = read(await unpack(document.getElementById('data').textContent));
  const { doc } = data;
  const timeline = data.tracks.length ? new Timeline(data, theme) : null;
  const show = (from, to, finding, text) => timeline?.jump(from, to, finding, text);
  const lead = (from, to, text) => timeline?.lead(from, to, text);
  const sections = [
    findings(doc, theme, show),
    timeline?.root,
    whatIf(doc),
    flameGraphs(doc, data.flames, theme),
    tables(doc, lead),
    doubts(doc),
  ].filter(Boolean);
  document.body.append(
    header(doc, sections),
    h('main', null, summary(doc, theme), sections),
    h(
      'footer',
      null,
      `InferScope ${doc.version}. This page holds everything that it shows and fetches nothing. Keys: / search, w s zoom, a d move, 0 all, n p next and previous finding.`,
    ),
  );
  document.getElementById('data').remove();
  if (timeline) {
    const jumps = doc.findings.flatMap((f) =>
      f.evidence
        .filter((e) => e.to > e.from)
        .slice(0, 1)
        .map((e) => () => show(e.from, e.to, f, e.text)),
    );
    keys(timeline, jumps);
    timeline.draw();
  }
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      document.documentElement.dataset.ready = String(Math.round(performance.now() - began));
    }),
  );
  // For tests, and for the curious in the console.
  window.inferscope = { data, timeline };
}

start().catch((e) => {
  clear(document.body).append(
    h(
      'p.failed',
      null,
      `This page cannot be shown: ${e.message}. It needs a browser of 2023 or newer (DecompressionStream); inferscope report --format markdown says the same in plain text.`,
    ),
  );
});
