// Light and dark, and the colours of everything that is drawn.

const causes = {
  'python-work': ['#e8893b', '#f0a35e'],
  'native-work': ['#c96a1b', '#d9843a'],
  preprocessing: ['#f2b134', '#f5c465'],
  'launch-overhead': ['#7c6ee6', '#9b90f2'],
  'host-sync': ['#d6487e', '#ea6f9d'],
  'sync-copy': ['#c238a8', '#dc66c5'],
  allocation: ['#8f4fd1', '#ad7be6'],
  compilation: ['#5b4bb5', '#8073d6'],
  gc: ['#b56fd9', '#c793e6'],
  serialization: ['#b8860b', '#d4a63a'],
  worker: ['#d9534f', '#ec7773'],
  lock: ['#b03a3a', '#d45f5f'],
  gil: ['#e0604c', '#f08573'],
  disk: ['#8c5a3c', '#b07d5c'],
  network: ['#a8763e', '#c7965d'],
  'page-faults': ['#996515', '#bd8a3c'],
  'no-cpu': ['#e5533d', '#f47a66'],
  throttled: ['#c0392b', '#e0665a'],
  'remote-memory': ['#a0522d', '#c47a55'],
  sleep: ['#8a97a6', '#7f8c9b'],
  'no-work': ['#a9b4c0', '#6d7986'],
  dependency: ['#4f7cac', '#7aa3cf'],
  'start-end': ['#6f8f72', '#8fae92'],
  unknown: ['#9aa0a8', '#7d848d'],
};

const classes = {
  copy: ['#d4a017', '#e3b941'],
  set: ['#8d99a6', '#9aa7b5'],
  running: ['#4caf7a', '#4fb07f'],
  runnable: ['#ef8a3c', '#f09a55'],
  blocked: ['#c9d2dc', '#46515e'],
  range: ['#5aa9c9', '#5f9fb8'],
  compute: ['#2f9e6e', '#46b586'],
  h2d: ['#d4a017', '#e3b941'],
  d2h: ['#e0b84c', '#edcb74'],
  d2d: ['#b99a3c', '#cdb05a'],
  python: ['#e8a33b', '#c98a2e'],
  native: ['#6b8fc9', '#4f76b3'],
  kernel_code: ['#c96b6b', '#b35454'],
  thread: ['#9aa6b2', '#5e6a77'],
  wait: ['#a583d1', '#8463b3'],
  request: ['#74818f', '#566370'],
  sensor: ['#6b9a8b', '#4f7d6f'],
  'sensor limited': ['#e5533d', '#f47a66'],
  xid: ['#c0392b', '#ff6b5e'],
  'stage server': ['#e8a33b', '#c98a2e'],
  'stage queue': ['#d9534f', '#ec7773'],
  'stage prefill': ['#7c6ee6', '#9b90f2'],
  'stage decode': ['#2f9e6e', '#46b586'],
};

const calls = {
  launch: ['#4a7fd6', '#6c9bea'],
  graph: ['#3f63b5', '#6886d6'],
  sync: ['#d6487e', '#ea6f9d'],
  copy: ['#d4a017', '#e3b941'],
  alloc: ['#8f4fd1', '#ad7be6'],
  free: ['#a06fd6', '#be95ea'],
  memory: ['#a06fd6', '#be95ea'],
  module: ['#5b4bb5', '#8073d6'],
};

/** Colours for the parts of the view that people know, by key. */
const view = {
  cpu: ['#e8893b', '#f0a35e'],
  framework: ['#7c6ee6', '#9b90f2'],
  waiting: ['#d9534f', '#ec7773'],
  idle: causes['no-work'],
  gpu: causes['host-sync'],
  'device-memory': ['#b99a3c', '#cdb05a'],
  'bandwidth-bound': ['#2f9e6e', '#46b586'],
  'small-batch': ['#2f9e6e', '#46b586'],
  'tiny-kernels': ['#3a8f9e', '#52a9b8'],
  'copy-not-overlapped': ['#d4a017', '#e3b941'],
  'copy-bound': ['#d4a017', '#e3b941'],
  communication: ['#b0508f', '#c96fab'],
  'exposed-communication': ['#b0508f', '#c96fab'],
};

export class Theme {
  constructor() {
    this.listeners = [];
    this.media = matchMedia('(prefers-color-scheme: dark)');
    this.media.addEventListener('change', () => this.apply());
    try {
      this.chosen = localStorage.getItem('inferscope-theme') ?? 'auto';
    } catch {
      this.chosen = 'auto'; // a page from a file may have no storage
    }
    this.apply();
  }

  get dark() {
    return this.chosen === 'dark' || (this.chosen !== 'light' && this.media.matches);
  }

  toggle() {
    this.chosen = this.dark ? 'light' : 'dark';
    try {
      localStorage.setItem('inferscope-theme', this.chosen);
    } catch {
      // it holds until the page is closed
    }
    this.apply();
  }

  apply() {
    document.documentElement.dataset.theme = this.dark ? 'dark' : 'light';
    this.cache = new Map();
    this.vars = getComputedStyle(document.documentElement);
    for (const f of this.listeners) f();
  }

  onChange(f) {
    this.listeners.push(f);
  }

  /** A colour of the style sheet. */
  css(name) {
    return this.vars.getPropertyValue(name).trim();
  }

  /** The colour of a part of a breakdown, by its key. */
  part(key) {
    const pair = causes[key] ?? view[key] ?? classes[key] ?? classes.set;
    return pair[this.dark ? 1 : 0];
  }

  /** The colour of a frame of a flame graph. */
  frame(kind) {
    return (classes[kind === 'kernel' ? 'kernel_code' : kind] ?? classes.native)[this.dark ? 1 : 0];
  }

  /** The colour of a label of the timeline: [text, class]. */
  label([text, cls]) {
    const key = cls === 'kernel' ? text : cls;
    let c = this.cache.get(key);
    if (!c) {
      c = this.make(text, cls);
      this.cache.set(key, c);
    }
    return c;
  }

  make(text, cls) {
    const k = this.dark ? 1 : 0;
    if (cls.startsWith('cause ')) return (causes[cls.slice(6)] ?? causes.unknown)[k];
    if (cls.startsWith('call ')) {
      return (calls[cls.slice(5)] ?? ['#8fa3b8', '#7d90a5'])[k];
    }
    if (cls !== 'kernel') return (classes[cls] ?? classes.set)[k];
    let hash = 7;
    for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) | 0;
    const hue = 142 + (Math.abs(hash) % 72);
    const light = (this.dark ? 46 : 44) + (Math.abs(hash >> 8) % 14);
    return hex(hue, 0.46, light / 100);
  }
}

/** A colour as #rrggbb, which canvases read fastest: CSS Color 4, 7.1. */
function hex(hue, saturation, light) {
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    const c = light - saturation * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * c)
      .toString(16)
      .padStart(2, '0');
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}
