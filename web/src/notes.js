// What to know of a timeline before it is read.

import { h } from './dom.js';
import { count, span } from './format.js';

/** Says whether all of a recording was seen; each stretch is its beginning and its end, ns. */
const whole = (seen, length) => seen.length === 2 && seen[0] <= 0 && seen[1] >= length;

/** What to know of the timeline: how fine it is, and what is not in it. */
export function notes(doc, tracks) {
  const list = [`Times are rounded to ${doc.quantum} ns.`];
  if (doc.merged > 0) {
    const all = tracks.reduce((n, t) => n + t.all, 0);
    const drawn = tracks.reduce((n, t) => n + t.n, 0);
    const focus = doc.focus.reduce((n, [from, to]) => n + to - from, 0);
    list.push(
      `To keep this page small, neighbours shorter than ${span(doc.merged)} are drawn as one block that says how many they are and how much of its time they take: ${count(drawn)} blocks and single items for ${count(all)}. Around what the findings point at (${span(focus)}) each is as it was recorded, and the tables rest on all of them.`,
    );
  }
  if (doc.hidden > 0)
    list.push(
      `${doc.hidden === 1 ? 'One thread that hardly' : `${count(doc.hidden)} threads that hardly`} ran or called CUDA ${doc.hidden === 1 ? 'is' : 'are'} left out.`,
    );
  if (doc.spans.some((seen) => !whole(seen, doc.length))) list.push('Hatched: what the GPU did then was not recorded.');
  list.push(
    'Drag or a, d to move; Ctrl and wheel, pinch or w, s to zoom; double click to zoom to an item; Shift and drag to measure.',
  );
  return h(
    'ul.hints',
    null,
    list.map((text) => h('li', null, text)),
  );
}
