// Numbers for people; the same words as internal/format.

const three = (v) => (v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1) : v.toFixed(2));

/** @param {number} ns */
export function span(ns) {
  if (ns < 1000) return `${Math.round(ns)} ns`;
  if (ns < 999.5e3) return `${three(ns / 1e3)} µs`;
  if (ns < 999.5e6) return `${three(ns / 1e6)} ms`;
  if (ns < 119.5e9) return `${three(ns / 1e9)} s`;
  const s = Math.round(ns / 1e9);
  return `${Math.floor(s / 60)} min ${s % 60} s`;
}

/** A point in the window, with as many digits as steps of so many ns need. */
export function moment(ns, step) {
  const [unit, name] = step >= 1e8 ? [1e9, 's'] : step >= 1e5 ? [1e6, 'ms'] : step >= 100 ? [1e3, 'µs'] : [1, 'ns'];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return `${(ns / unit).toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${name}`;
}

export const count = (n) => Math.round(n).toLocaleString('en');

export const percent = (f) => (f > 0 && f < 0.0005 ? '<0.1%' : `${(100 * f).toFixed(1)}%`);

export function bytes(b) {
  if (b < 1000) return `${b} B`;
  let v = b;
  for (const unit of ['kB', 'MB', 'GB', 'TB', 'PB']) {
    v /= 1000;
    if (v < 999.5 || unit === 'PB') return `${three(v)} ${unit}`;
  }
}

/** Writes a cell of a table by the unit of its column. */
export function cell(value, unit) {
  if (value === null || value === undefined || value === '') return '–';
  switch (unit) {
    case 'ns':
      return span(value);
    case 'count':
      return count(value);
    case 'bytes':
      return value === 0 ? '–' : bytes(value);
    case 'rate':
      return value === 0 ? '–' : `${bytes(value)}/s`;
    case 'share':
      return percent(value);
    default:
      return String(value);
  }
}
