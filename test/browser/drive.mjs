// Opens the pages of a folder in Chromium and does with them what a person does. Used by browser_test.go:
//   node drive.mjs FOLDER CHROMIUM
import assert from 'node:assert/strict';
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [folder, executablePath] = process.argv.slice(2);
const wide = { width: 1400, height: 1000 };
const narrow = { width: 390, height: 844 };

/** What went wrong on a page: errors of its script, refused content, requests. */
function watch(page, wrong) {
  page.on('pageerror', (e) => wrong.push(`error: ${e.message}`));
  page.on('console', (m) => m.type() === 'error' && wrong.push(`console: ${m.text()}`));
  page.on('request', (r) => !/^(file|data|blob):/.test(r.url()) && wrong.push(`request: ${r.url()}`));
}

async function open(browser, name, viewport, colorScheme = 'light') {
  const page = await browser.newPage({ viewport, colorScheme, hasTouch: viewport === narrow, reducedMotion: 'reduce' }); // so that nothing moves by itself
  page.setDefaultTimeout(120000); // to find a hang, no more: machines are slow
  const wrong = [];
  watch(page, wrong);
  // CPU time of the page's main thread: on a busy machine the time that passes says little.
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Performance.enable', { timeDomain: 'threadTicks' });
  const path = join(folder, `${name}.html`);
  await page.goto(`file://${path}`);
  await page.waitForFunction(() => document.documentElement.dataset.ready, null, { timeout: 240000 });
  const ready = Number(await page.evaluate(() => document.documentElement.dataset.ready));
  const { metrics } = await cdp.send('Performance.getMetrics');
  const cpu = Math.round(1000 * metrics.find((m) => m.name === 'TaskDuration').value);
  return { page, cdp, wrong, ready, cpu, bytes: statSync(path).size };
}

/** Fingers go from their first places to their last ones, in steps, and are lifted. */
async function fingers(cdp, page, paths) {
  const steps = 12;
  const at = (i) => paths.map(([from, to], id) => ({ id, x: from[0] + (i / steps) * (to[0] - from[0]), y: from[1] + (i / steps) * (to[1] - from[1]) }));
  await cdp.send('Input.dispatchTouchEvent', { type: 'touchStart', touchPoints: at(0) });
  for (let i = 1; i <= steps; i++) {
    await cdp.send('Input.dispatchTouchEvent', { type: 'touchMove', touchPoints: at(i) });
    await frame(page);
  }
  await cdp.send('Input.dispatchTouchEvent', { type: 'touchEnd', touchPoints: [] });
  await frame(page);
}

/** The stretch that is shown, ns. */
const shown = (page) => page.evaluate(() => {
  const t = inferscope.timeline;
  return { from: t.from * t.doc.quantum, to: t.to * t.doc.quantum, length: t.doc.length };
});

/** ns that a unit of the timeline is. */
const quantum = (page) => page.evaluate(() => inferscope.timeline.doc.quantum);

const frame = (page) => page.evaluate(() => new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f))));

/** How many different colours a canvas has: an empty one has few. */
const colours = (page, selector) => page.evaluate((s) => {
  const c = document.querySelector(s);
  const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4 * 7) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return seen.size;
}, selector);

const checks = {
  async 'nothing of a hostile name runs, and nothing is fetched'({ pipeline: { page } }) {
    assert.equal(await page.evaluate(() => window.owned), undefined);
    assert.equal(await page.locator('img').count(), 0);
    assert.equal(await page.locator('script').count(), 1, 'scripts of the page');
    assert.match(await page.locator('.facts').first().textContent(), /python/);
    assert.ok((await page.evaluate(() => document.body.textContent)).includes('<script>window.owned=1</script>'), 'the hostile name is shown as text');
    await page.evaluate(() => fetch('https://example.com/').then(() => assert.fail(), () => 0)); // the policy refuses it
  },
  async 'the answer stands first'({ pipeline: { page } }) {
    assert.match(await page.locator('h1').textContent(), /CPU-bound/);
    assert.equal(await page.locator('#findings h2').textContent(), 'What to change, most time won back first');
    assert.equal(await page.locator('.bar figcaption').first().textContent(), 'Where the time went');
    const tops = await page.evaluate(() => ['#summary', '#findings', '#timeline', '#tables'].map((s) => document.querySelector(s).getBoundingClientRect().top));
    assert.deepEqual(tops, [...tops].sort((a, b) => a - b));
    const shares = await page.locator('.bar').first().locator('.legend .number:not(.dim)').allTextContents();
    const sum = shares.reduce((n, s) => n + parseFloat(s), 0);
    assert.ok(Math.abs(sum - 100) < 0.5, `the shares of the view sum to ${sum}%`);
  },
  async 'the timeline zooms and moves, by wheel, buttons and keys'({ pipeline: { page } }) {
    const all = await shown(page);
    assert.ok(all.to - all.from >= all.length * 0.99);
    assert.ok((await colours(page, '.port canvas')) > 6, 'something is drawn');
    const canvas = page.locator('.port canvas');
    await canvas.scrollIntoViewIfNeeded();
    const box = await canvas.boundingBox();
    const x = box.x + 190 + (box.width - 190) * 0.25;
    await page.mouse.move(x, box.y + 60);
    const at = (v) => v.from + 0.25 * (v.to - v.from);
    await page.keyboard.down('Control');
    for (let i = 0; i < 8; i++) await page.mouse.wheel(0, -60);
    await page.keyboard.up('Control');
    await frame(page);
    const near = await shown(page);
    assert.ok(near.to - near.from < (all.to - all.from) / 20, 'the wheel zooms');
    assert.ok(Math.abs(at(near) - at(all)) < (near.to - near.from) * 0.02, 'what is under the pointer stays there');
    await page.keyboard.press('d');
    const right = await shown(page);
    assert.ok(right.from > near.from && Math.abs(right.to - right.from - (near.to - near.from)) < 1e3, 'd moves');
    await page.mouse.down();
    await page.mouse.move(x + 150, box.y + 60, { steps: 5 });
    await page.mouse.up();
    assert.ok((await shown(page)).from < right.from, 'dragging moves');
    await page.keyboard.press('s');
    assert.ok((await shown(page)).to - (await shown(page)).from > right.to - right.from, 's shows more');
    await page.getByRole('button', { name: 'Show all (0)' }).click();
    assert.deepEqual(await shown(page), all);
  },
  async 'a finding leads to its gap'({ pipeline: { page } }) {
    for (const i of [0, 1]) {
      const want = await page.evaluate((n) => inferscope.data.doc.findings[n].evidence.find((e) => e.to > e.from), i);
      await page.locator(`[data-jump="${i}"]`).click();
      await frame(page);
      const v = await shown(page);
      assert.ok(v.from <= want.from && v.to >= want.to && v.to - v.from < 3 * (want.to - want.from), JSON.stringify({ v, want }));
      const cause = await page.evaluate((n) => {
        const t = inferscope.timeline;
        const middle = (t.mark.from + t.mark.to) / 2;
        const track = t.tracks.find((k) => k.kind === 'idle');
        for (let j = 0; j < track.n; j++) if (track.start[j] <= middle && track.end[j] > middle) return [t.doc.labels[track.label[j]][1], t.doc.findings[n].cause];
        return null;
      }, i);
      assert.equal(cause[0], `cause ${cause[1]}`, 'there is a gap of that cause');
      assert.match(await page.locator('#timeline .status').textContent(), /GPU idle/);
    }
  },
  async 'an item says what it is, and GPU work leads to its call'({ pipeline: { page } }) {
    const spot = await page.evaluate(() => {
      const t = inferscope.timeline;
      const track = t.tracks.find((k) => k.kind === 'gpu');
      const i = Math.floor(track.n / 2);
      t.show(track.start[i] - 100, track.end[i] + 100);
      t.port.scrollTop = 0;
      const row = t.rows.find((r) => r.track === track);
      const box = t.canvas.getBoundingClientRect();
      return { x: box.left + t.x((track.start[i] + track.end[i]) / 2), y: box.top + t.painter.axis + row.y + row.height / 2, text: t.doc.labels[track.label[i]][0] };
    });
    await page.mouse.move(spot.x, spot.y);
    await frame(page);
    assert.ok((await page.locator('#timeline .tip').textContent()).includes(spot.text.slice(0, 30)), 'the tip names it');
    await page.mouse.click(spot.x, spot.y);
    assert.ok((await page.locator('#timeline .detail').textContent()).includes('Asked for by'));
    await page.getByRole('button', { name: 'Go to its call' }).click();
    assert.match(await page.locator('#timeline .detail h3').textContent(), /cuLaunchKernel/);
  },
  async 'search finds names in the timeline'({ pipeline: { page } }) {
    await page.locator('h1').click();
    await page.keyboard.press('0');
    await page.keyboard.press('/');
    await page.keyboard.type('flash_fwd');
    const truth = await page.evaluate(() => inferscope.data.doc.tables.find((t) => t.key === 'kernels').rows.find((r) => r[0].startsWith('flash_fwd'))[1]);
    assert.equal(await page.locator('#timeline .found').textContent(), `${truth.toLocaleString('en')} matches`);
    const starts = [];
    for (let i = 0; i < 3; i++) {
      await page.keyboard.press('Enter');
      starts.push(await page.evaluate(() => inferscope.timeline.selected.track.start[inferscope.timeline.selected.i]));
    }
    assert.ok(starts[0] < starts[1] && starts[1] < starts[2], `matches come in time: ${starts}`);
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('#timeline .found').textContent(), '');
  },
  async 'tables sort and search'({ million: { page } }) {
    const cells = (n) => page.locator(`#tables tbody tr td:nth-child(${n})`).allTextContents();
    const numbers = async (n) => (await cells(n)).map((s) => Number(s.replaceAll(',', '')));
    const head = page.locator('#tables th button', { hasText: 'Runs' });
    await head.click();
    const down = await numbers(2);
    assert.equal(down.length, 25);
    assert.deepEqual(down, [...down].sort((a, b) => b - a));
    await head.click();
    const up = await numbers(2);
    assert.deepEqual(up, [...up].sort((a, b) => a - b));
    assert.ok(up[0] < down[0]);
    await page.getByLabel('Search the table').fill('kernel_11');
    const names = await cells(1);
    assert.ok(names.length >= 10 && names.every((n) => n.includes('kernel_11')), names.join());
    await page.getByLabel('Search the table').fill('no such kernel');
    assert.equal((await cells(1)).length, 0);
    await page.getByLabel('Search the table').fill('');
    await page.getByRole('button', { name: /^Show all .* rows/ }).click();
    assert.equal((await cells(1)).length, 128);
  },
  async 'a slow request leads to its lane, with its stages'({ served: { page } }) {
    assert.equal(await page.evaluate(() => window.owned), undefined);
    await page.getByRole('tab', { name: 'Requests, the slowest first' }).click();
    const row = page.locator('#tables tbody tr').first();
    const id = (await row.locator('td').last().textContent()).trim();
    await row.locator('button').click();
    await frame(page);
    const { text, kind, depth, stages, inside } = await page.evaluate(() => {
      const t = inferscope.timeline;
      const { track, i } = t.selected;
      const inner = [...Array(track.n).keys()].filter((j) => j !== i && track.start[j] >= track.start[i] && track.end[j] <= track.end[i]);
      return {
        text: t.text(t.selected),
        kind: track.kind,
        depth: track.depth[i],
        stages: inner.map((j) => t.doc.labels[track.label[j]][0]),
        inside: inner.every((j) => track.depth[j] === 1),
      };
    });
    assert.ok(text.includes(`, ${id},`), `${text} is chosen for ${id}`);
    assert.deepEqual([kind, depth, inside], ['request', 0, true]);
    assert.deepEqual(stages, ['read', 'queue and prefill', 'decode', 'finish']);
    const heads = await page.evaluate(() => inferscope.timeline.rows.map((r) => r.head).filter(Boolean));
    assert.ok(heads.includes('Requests'), heads.join());
  },
  async 'flame graphs zoom and search'({ pipeline: { page } }) {
    assert.ok((await colours(page, '.flame canvas')) > 3);
    for (const name of ['All CPU time', 'Off-CPU time', 'CPU time while the GPU was idle']) {
      await page.getByRole('tab', { name }).click();
      assert.match(await page.locator('#flames p.dim').textContent(), /in all/);
    }
    await page.getByLabel('Search the flame graph').fill('top_p');
    assert.match(await page.locator('#flames .found').textContent(), /^on the stack for [1-9]/);
    await page.locator('.flame canvas').click({ position: { x: 30, y: 25 } });
    assert.ok((await page.locator('.crumbs button').count()) >= 2, 'the path to what is shown');
    await page.locator('.crumbs button').first().click();
    assert.equal(await page.locator('.crumbs button').count(), 0);
  },
  async 'a flame graph of one thread'({ pipeline: { page } }) {
    const threads = page.getByLabel('Thread', { exact: true });
    const crumbs = page.locator('#flames .crumbs button');
    await page.getByRole('tab', { name: 'All CPU time' }).click();
    const names = (await threads.locator('option').allTextContents()).slice(1);
    assert.ok(names.length >= 2, names.join());
    await threads.selectOption(names[1]);
    assert.deepEqual(await crumbs.allTextContents(), ['all', names[1]]);
    await page.getByRole('tab', { name: 'Off-CPU time' }).click();
    const kept = await threads.inputValue();
    assert.ok([names[1], ''].includes(kept), kept);
    await page.getByRole('tab', { name: 'All CPU time' }).click();
    await threads.selectOption('');
    assert.equal(await crumbs.count(), 0);
  },
  async 'what-if: a slider changes what is predicted'({ pipeline: { page } }) {
    if (await page.evaluate(() => !inferscope.data.doc.whatif)) return 'skipped: nothing was predicted for this recording';
    const card = page.locator('.whatif:has(input)').first();
    const read = async () => parseFloat(await card.locator('.gain').textContent());
    const most = await read();
    await card.locator('input').fill('50');
    const half = await read();
    await card.locator('input').fill('0');
    assert.equal(await read(), 1);
    assert.ok(most > half && half > 1, `${half} at half, ${most} at all`);
  },
  async 'light and dark'({ pipeline: { page } }) {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number).reduce((a, b) => a + b));
    const light = await ground();
    await page.locator('#theme').click();
    await frame(page);
    const dark = await ground();
    assert.ok(light > 600 && dark < 150, `${light}, ${dark}`);
    assert.ok((await colours(page, '.port canvas')) > 6);
    await page.locator('#theme').click();
    assert.equal(await ground(), light);
  },
  async 'a narrow screen shows all of it'({ narrow: { page } }) {
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(over <= 0, `the page is ${over} pixels too wide`);
    assert.ok((await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number).reduce((a, b) => a + b))) < 150, 'dark as the system asks');
    await page.locator('[data-jump="0"]').click();
    await frame(page);
    assert.ok((await colours(page, '.port canvas')) > 4);
  },
  async 'fingers move and zoom the timeline, choose an item, and scroll the page'({ narrow: { page, cdp } }) {
    await page.locator('.port canvas').scrollIntoViewIfNeeded();
    await page.evaluate(() => {
      const t = inferscope.timeline;
      t.port.scrollIntoView({ block: 'center' });
      t.port.scrollTop = 0;
      t.show(t.length * 0.4, t.length * 0.6);
    });
    const box = await page.locator('.port').boundingBox();
    const place = (x) => page.evaluate((at) => inferscope.timeline.timeAt(at - inferscope.timeline.canvas.getBoundingClientRect().left), x);
    const [x, y] = [box.x + box.width * 0.7, box.y + 60];
    const grip = await place(x);
    const before = await shown(page);
    await fingers(cdp, page, [[[x, y], [x - 90, y]]]);
    const moved = await shown(page);
    const slop = 0.1 * (before.to - before.from); // a finger has to move by some pixels before it moves anything
    assert.ok(Math.abs((moved.to - moved.from) / (before.to - before.from) - 1) < 1e-6, 'one finger does not zoom');
    assert.ok(moved.from > before.from + slop, 'one finger moves');
    assert.ok(Math.abs((await place(x - 90)) - grip) * (await quantum(page)) < slop, 'and what is under it stays there');
    const middle = await place(x);
    await fingers(cdp, page, [[[x - 30, y], [x - 90, y]], [[x + 30, y], [x + 90, y]]]);
    const near = await shown(page);
    const factor = (moved.to - moved.from) / (near.to - near.from);
    assert.ok(factor > 2 && factor < 3.2, `two fingers three times as far apart zoom by ${factor}`);
    assert.ok(Math.abs((await place(x)) - middle) * (await quantum(page)) < 0.1 * (near.to - near.from), 'what is between them stays there');
    const spot = await page.evaluate(() => {
      const t = inferscope.timeline;
      const track = t.tracks.find((k) => k.kind === 'gpu');
      const i = Math.floor(track.n / 2);
      t.show(track.start[i] - 100, track.end[i] + 100);
      const row = t.rows.find((r) => r.track === track);
      const { left, top } = t.canvas.getBoundingClientRect();
      return { x: left + t.x((track.start[i] + track.end[i]) / 2), y: top + t.painter.axis + row.y + row.height / 2 };
    });
    await page.touchscreen.tap(spot.x, spot.y);
    await frame(page);
    assert.ok((await page.locator('#timeline .detail').textContent()).includes('Asked for by'), 'a tap chooses');
    const [still, from] = [await shown(page), await page.evaluate(() => scrollY)];
    await fingers(cdp, page, [[[x, y + 20], [x, y - 180]]]);
    await page.waitForFunction((was) => scrollY > was + 50 || inferscope.timeline.port.scrollTop > 50, from);
    assert.deepEqual(await shown(page), still, 'a finger that scrolls the page leaves the timeline as it is');
  },
  async 'what is merged says so, and the focus is exact'({ million: { page, bytes } }) {
    const { doc, items, inFocus } = await page.evaluate(() => {
      const { doc, tracks } = inferscope.data;
      let inFocus = 0;
      for (const t of tracks) {
        for (let i = 0; i < t.n; i++) {
          const at = ((t.start[i] + t.end[i]) / 2) * doc.quantum;
          if (t.count[i] && doc.focus.some(([a, b]) => a <= at && at < b)) inFocus++;
        }
      }
      return { doc: { merged: doc.merged }, inFocus, items: tracks.reduce((n, t) => n + t.count.reduce((a, b) => a + Math.max(1, b), 0), 0) };
    });
    const all = await page.evaluate(() => inferscope.data.doc.tracks.reduce((n, t) => n + t.all, 0));
    assert.equal(items, all, 'every item is in a block or drawn by itself');
    assert.ok(inFocus <= 2, `${inFocus} blocks in the focus`);
    assert.equal(/drawn as one block/.test(await page.locator('.hints').textContent()), doc.merged > 0);
    if (existsSync(join(folder, 'minute.html'))) assert.ok(doc.merged > 0, 'a million items are too many for a page');
    assert.ok(bytes < 2e6);
  },
};

const browser = await chromium.launch({ executablePath, args: process.getuid() === 0 ? ['--no-sandbox'] : [] });
let failed = 0;
try {
  const pages = {};
  for (const [name, file, viewport, scheme] of [['pipeline', 'pipeline', wide], ['small', 'small', wide], ['served', 'served', wide], ['million', 'million', wide], ['crowd', 'crowd', wide], ['minute', 'minute', wide], ['narrow', 'pipeline', narrow, 'dark']]) {
    if (!existsSync(join(folder, `${file}.html`))) continue;
    pages[name] = await open(browser, file, viewport, scheme);
    console.log(`${name.padEnd(10)} ${String(pages[name].bytes).padStart(8)} bytes, shown after ${pages[name].ready} ms, ${pages[name].cpu} ms of CPU`);
    if (pages[name].bytes >= 2e6) {
      failed++;
      console.log(`not ok: ${name} is larger than 2 MB`);
    }
  }
  for (const [name, check] of Object.entries(checks)) {
    try {
      const note = await check(pages);
      console.log(`ok: ${name}${note ? ` (${note})` : ''}`);
    } catch (e) {
      failed++;
      console.log(`not ok: ${name}: ${e.stack.split('\n').slice(0, 12).join('\n')}`);
    }
  }
  for (const [name, { wrong }] of Object.entries(pages)) {
    for (const w of wrong.filter((text) => !text.includes('example.com'))) {
      failed++;
      console.log(`not ok: ${name}: ${w}`);
    }
  }
} finally {
  await browser.close();
}
process.exit(failed ? 1 : 0);
