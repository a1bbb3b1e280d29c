// Mouse, touch and keyboard on the timeline.

import { span } from './format.js';

/** How far a pointer may move in a click, CSS pixels. */
const still = 4;

/** @param {import('./timeline.js').Timeline} t */
export function listen(t) {
  const { canvas } = t;
  const held = new Map(); // pointers that are down: id to {x, y}
  let moved = 0;
  const place = (e) => {
    const box = canvas.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  };
  const itemAt = ({ x, y }) => (y < t.painter.axis ? null : t.at(x, y - t.painter.axis + t.port.scrollTop));

  canvas.addEventListener(
    'wheel',
    (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey) {
        e.preventDefault();
        t.zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * 0.012), place(e).x);
      } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        t.pan((e.deltaX || e.deltaY) / t.width);
      }
    },
    { passive: false },
  );

  canvas.addEventListener('pointerdown', (e) => {
    if (e.button !== 0) return;
    canvas.setPointerCapture(e.pointerId);
    held.set(e.pointerId, place(e));
    moved = 0;
    const at = t.timeAt(place(e).x);
    t.measure = e.shiftKey ? { from: at, to: at, origin: at } : null;
  });

  canvas.addEventListener('pointermove', (e) => {
    const now = place(e);
    const was = held.get(e.pointerId);
    if (!was) return hover(t, itemAt(now), e);
    hover(t, null, e);
    moved += Math.abs(now.x - was.x);
    if (t.measure) stretch(t, now.x);
    else if (held.size === 2) pinch(t, held, e.pointerId, now);
    else if (moved > still) t.pan((was.x - now.x) / t.width);
    held.set(e.pointerId, now);
  });

  const up = (e) => {
    if (held.delete(e.pointerId) && held.size === 0 && moved <= still && e.type === 'pointerup') {
      t.measure = null;
      t.select(itemAt(place(e)));
    }
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', up);
  canvas.addEventListener('pointerleave', (e) => hover(t, null, e));
  canvas.addEventListener('dblclick', (e) => {
    const item = itemAt(place(e));
    item ? t.reveal(item) : t.zoom(0.4, place(e).x);
  });
  canvas.addEventListener('keydown', (e) => arrows(t, e));
}

function hover(t, item, e) {
  const same = t.hovered && item ? t.hovered.track === item.track && t.hovered.i === item.i : t.hovered === item;
  if (!same) {
    t.hovered = item;
    t.draw();
  }
  t.tip.hidden = !item;
  if (!item) return;
  t.tip.textContent = t.words(item);
  const room = document.documentElement.clientWidth;
  t.tip.style.left = `${Math.min(e.clientX + 14, Math.max(4, room - t.tip.offsetWidth - 8))}px`;
  t.tip.style.top = `${e.clientY + 18}px`;
}

function stretch(t, x) {
  const at = t.timeAt(x);
  t.measure.from = Math.min(at, t.measure.origin);
  t.measure.to = Math.max(at, t.measure.origin);
  t.detail.textContent = `Measured: ${span((t.measure.to - t.measure.from) * t.doc.quantum)}`;
  t.draw();
}

/** Two fingers: what is under them stays there. */
function pinch(t, held, id, now) {
  const [other] = [...held].filter(([k]) => k !== id).map(([, p]) => p);
  const was = held.get(id);
  const before = Math.max(10, Math.abs(was.x - other.x));
  const after = Math.max(10, Math.abs(now.x - other.x));
  t.zoom(before / after, (now.x + other.x) / 2);
}

function arrows(t, e) {
  const act = {
    ArrowLeft: () => t.pan(-0.15),
    ArrowRight: () => t.pan(0.15),
    ArrowUp: () => t.zoom(0.7),
    ArrowDown: () => t.zoom(1.4),
    Enter: () => t.selected && t.reveal(t.selected),
    Escape: () => clearAll(t),
  }[e.key];
  if (!act || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  act();
}

function clearAll(t) {
  t.mark = t.measure = null;
  t.select(null);
}

/** Keys that work everywhere on the page but where somebody types. */
export function keys(t, jumps) {
  let next = -1;
  const go = (by) => {
    if (!jumps.length) return;
    next = (next + by + jumps.length) % jumps.length;
    jumps[next]();
  };
  const acts = {
    w: () => t.zoom(0.6),
    s: () => t.zoom(1.6),
    a: () => t.pan(-0.2),
    d: () => t.pan(0.2),
    0: () => t.show(0, t.length),
    n: () => go(1),
    p: () => go(-1),
  };
  document.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName ?? '')) return;
    if (e.key === '/') {
      e.preventDefault();
      t.search.focus();
      t.search.select();
    } else acts[e.key]?.();
  });
}
