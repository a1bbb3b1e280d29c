// The strip above the timeline: the whole window, with a frame around what is shown.

import { h } from './dom.js';

const stripHeight = 44;

export class Overview {
  /** @param {import('./timeline.js').Timeline} timeline */
  constructor(timeline) {
    this.t = timeline;
    this.canvas = h('canvas.overview', { 'aria-hidden': true, title: 'The whole window: drag to move what is shown' });
    this.context = this.canvas.getContext('2d');
    this.image = null;
    timeline.theme.onChange(() => (this.image = null));
    const move = (e) => {
      const at = (e.offsetX / this.canvas.clientWidth) * timeline.length;
      const half = (timeline.to - timeline.from) / 2;
      timeline.show(at - half, at + half);
    };
    this.canvas.addEventListener('pointerdown', (e) => {
      this.canvas.setPointerCapture(e.pointerId);
      this.held = true;
      move(e);
    });
    this.canvas.addEventListener('pointermove', (e) => this.held && move(e));
    for (const end of ['pointerup', 'pointercancel']) this.canvas.addEventListener(end, () => (this.held = false));
  }

  paint() {
    const { t, context: c } = this;
    const width = t.port.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = stripHeight * ratio;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${stripHeight}px`;
      this.image = null;
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (!this.image) this.image = this.make(width);
    c.clearRect(0, 0, width, stripHeight);
    c.drawImage(this.image, 0, 0, width, stripHeight);
    const a = (t.from / t.length) * width;
    const b = Math.max(a + 2, (t.to / t.length) * width);
    c.fillStyle = t.theme.css('--veil');
    c.fillRect(0, 0, a, stripHeight);
    c.fillRect(b, 0, width - b, stripHeight);
    c.strokeStyle = t.theme.css('--accent');
    c.lineWidth = 2;
    c.strokeRect(a + 1, 1, Math.max(1, b - a - 2), stripHeight - 2);
    if (t.mark) {
      c.fillStyle = t.theme.css('--accent');
      const x = ((t.mark.from + t.mark.to) / 2 / t.length) * width;
      c.beginPath();
      c.moveTo(x - 5, 0);
      c.lineTo(x + 5, 0);
      c.lineTo(x, 8);
      c.fill();
    }
  }

  /** A lane for each device: in each column the idle time by its causes, on the busy time. */
  make(width) {
    const { t } = this;
    const image = document.createElement('canvas');
    image.width = width;
    image.height = stripHeight;
    const c = image.getContext('2d');
    c.fillStyle = t.theme.css('--lane');
    c.fillRect(0, 0, width, stripHeight);
    const unit = t.length / width;
    const lanes = Math.max(1, t.idle.length);
    t.idle.forEach((track, lane) => {
      c.save();
      c.translate(0, (lane * stripHeight) / lanes);
      c.scale(1, 1 / lanes);
      this.busy(c, track, unit);
      this.stack(c, track, unit, width);
      c.restore();
    });
    return image;
  }

  busy(c, track, unit) {
    if (track.seen < 0) return;
    const list = this.t.spans[track.seen];
    c.fillStyle = this.t.theme.css('--busy-strong');
    for (let i = 0; i < list.length; i += 2)
      c.fillRect(list[i] / unit, 0, Math.max(1, (list[i + 1] - list[i]) / unit), stripHeight);
  }

  stack(c, track, unit, width) {
    const { t } = this;
    let i = 0;
    for (let x = 0; x < width; x++) {
      const [from, to] = [x * unit, (x + 1) * unit];
      while (i < track.n && track.end[i] <= from) i++;
      for (let j = i; j < track.n && track.start[j] < to; j++) {
        t.tally.add(
          track.label[j],
          (Math.min(track.end[j], to) - Math.max(track.start[j], from)) * (track.count[j] ? track.lead[j] : 1),
        );
      }
      let y = 0;
      t.tally.drain((label, time) => {
        c.fillStyle = t.colors[label];
        c.fillRect(x, y, 1, (time / unit) * stripHeight);
        y += (time / unit) * stripHeight;
      });
    }
  }
}
