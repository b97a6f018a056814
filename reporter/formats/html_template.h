#pragma once

// The fixed parts of the HTML page; report_html.cc puts the data between them. Names reach the page
// only as text nodes.

namespace memledger {

constexpr char kPageHead[] = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>memledger report</title>
<style>
:root { color-scheme: light dark; --back: #fff; --text: #1c2128; --faint: #667; --line: #d8dce2; --tile: #f4f6f8; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171b; --text: #e4e7eb; --faint: #99a3ad; --line: #333a42; --tile: #1e2329; --mark: #4a3f12; }
}
* { box-sizing: border-box; }
html, body { height: 100%; margin: 0; }
body { font: 14px/1.45 system-ui, sans-serif; background: var(--back); color: var(--text); display: flex; flex-direction: column; padding: 12px 16px; gap: 10px; min-height: 640px; }
h1 { font-size: 17px; margin: 0; }
header, .controls { display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: baseline; }
.faint { color: var(--faint); }
.tiles { display: flex; flex-wrap: wrap; gap: 8px; }
.tile { background: var(--tile); border-radius: 6px; padding: 5px 11px; }
.tile b { display: block; font-size: 15px; font-variant-numeric: tabular-nums; }
.tile.bad b { color: #d1242f; }
#map { position: relative; height: 34vh; min-height: 200px; border: 1px solid var(--line); border-radius: 4px; overflow: hidden; flex: none; }
#map div { position: absolute; overflow: hidden; }
#map .use { outline: 1px solid var(--back); }
#map .use > span { display: block; font-weight: 600; padding: 0 5px; height: 18px; line-height: 18px; white-space: nowrap; color: #fff; }
#map .cell { border: 1px solid rgba(255,255,255,.45); color: #fff; font-size: 11px; line-height: 1.25; padding: 1px 3px; cursor: pointer; text-shadow: 0 1px 1px rgba(0,0,0,.45); }
#map .cell:hover, #map .cell:focus { filter: brightness(1.15); outline: 2px solid var(--text); outline-offset: -2px; z-index: 1; }
input, select, button { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line); border-radius: 4px; padding: 3px 8px; }
#find { width: 24em; max-width: 100%; }
#table { flex: 1; min-height: 220px; border: 1px solid var(--line); border-radius: 4px; overflow: auto; position: relative; }
#head, .row { display: grid; grid-template-columns: minmax(16em,2.2fr) minmax(7em,.8fr) 8em 9.5em minmax(9em,1.2fr) 8.5em minmax(14em,2fr); min-width: 78em; }
#head { position: sticky; top: 0; background: var(--tile); border-bottom: 1px solid var(--line); z-index: 2; }
#head button { border: 0; background: none; text-align: left; font-weight: 600; padding: 4px 8px; cursor: pointer; border-radius: 0; white-space: nowrap; }
.row { position: absolute; left: 0; right: 0; height: 24px; line-height: 24px; }
.row:nth-child(odd) { background: color-mix(in srgb, var(--tile) 55%, transparent); }
.row span { padding: 0 8px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.number, #head .number { text-align: right; font-variant-numeric: tabular-nums; }
#introduction { margin: 0; padding: 8px 11px; background: var(--tile); border-radius: 6px; overflow-x: auto; flex: none; font: 12.5px/1.4 ui-monospace, monospace; }
#curves { display: flex; flex-wrap: wrap; gap: 10px; flex: none; }
#curves figure { margin: 0; }
#svg { display: none; }
#curves svg { display: block; background: var(--tile); border-radius: 6px; }
#curves .bytes { stroke: #2f6fb3; } #curves .peak { stroke: #a8402f; stroke-dasharray: 4 3; }
#curves polyline { fill: none; stroke-width: 1.5; }
.swatch { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }
</style>
</head>
<body>
<header><h1>memledger</h1><select id="device" aria-label="Device"></select><span id="when" class="faint"></span></header>
<pre id="introduction" hidden></pre>
<div id="curves" hidden></div>
<svg id="svg" hidden></svg>
<div class="tiles" id="tiles"></div>
<div id="map" role="group" aria-label="Bytes by what they are for and module"></div>
<div class="controls">
  <input id="find" type="search" placeholder="name, module, operator, shape, dtype" aria-label="Find rows">
  <button id="all" hidden>show all</button><span id="count" class="faint" aria-live="polite"></span>
</div>
<div id="table" tabindex="0" role="table" aria-label="Storages"><div id="head" role="row"></div><div id="body"></div></div>
<noscript>This page needs JavaScript. The same rows are in the report's JSON and CSV.</noscript>
<script type="application/json" id="data">)html";

constexpr char kPageTail[] = R"html(</script>
<script>
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const texts = data.texts;
const ROW = { kind: 0, name: 1, role: 2, bytes: 3, shape: 4, dtype: 5, module: 6, output: 7, made: 8, owner: 9, offset: 10, extent: 11, note: 12, part: 13 };
const colours = { Parameter: '#2f6fb3', Buffer: '#5b86ad', Gradient: '#8250a8', OptimizerState: '#0f8577', Input: '#a15c1b', Saved: '#3b8a3e', Temporary: '#7a6f5d', Tensor: '#a8402f',
  parameters: '#2f6fb3', buffers: '#5b86ad', gradients: '#8250a8', 'optimizer state': '#0f8577', inputs: '#a15c1b', activations: '#a8402f', 'gradients of activations': '#a0457a',
  'optimizer\'s temporaries': '#7a6f5d', 'compiled code\'s buffers': '#3b8a3e', workspaces: '#6b6f76', other: '#555a60' };
const $ = id => document.getElementById(id);
const make = (tag, name, text) => { const e = document.createElement(tag); if (name) e.className = name; if (text !== undefined) e.textContent = text; return e; };
function size(bytes) {
  if (bytes === null || bytes === undefined) return '?';
  const units = ['B', 'K', 'M', 'G', 'T', 'P'];
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit < 5) { value /= 1024; ++unit; }
  return value.toFixed(2) + units[unit];
}
const thousands = number => String(number).replace(/\B(?=(\d{3})+$)/g, ',');
// What a row is for: its part of a run's bytes, where the page is of a run, else its role.
const useOf = r => texts[r[ROW.part]] || data.roles[r[ROW.role]];
const moduleOf = r => texts[r[ROW.module]] || (r[ROW.owner] !== null ? '' : texts[r[ROW.made]]) || '(none)';

// Squarified: rectangles of the given weights, the largest first, as near to squares as they go.
function squarify(items, x, y, w, h, place) {
  let total = items.reduce((sum, item) => sum + item.bytes, 0);
  let first = 0;
  while (first < items.length && total > 0 && w > 0 && h > 0) {
    const side = Math.min(w, h), scale = w * h / total;
    let end = first, sum = 0, worst = Infinity;
    while (end < items.length) {
      const next = sum + items[end].bytes * scale;
      const thick = next / side;
      const ratio = Math.max(items[first].bytes * scale / thick / thick, thick * thick / (items[end].bytes * scale));
      if (ratio > worst) break;
      worst = ratio; sum = next; ++end;
    }
    const thick = sum / side;
    let at = 0;
    for (let i = first; i < end; ++i) {
      const length = items[i].bytes * scale / thick;
      if (w >= h) place(items[i], x, y + at, thick, length); else place(items[i], x + at, y, length, thick);
      at += length;
      total -= items[i].bytes;
    }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    first = end;
  }
}

let device, shown = [], only = null;
let sortBy = ROW.bytes, ascending = false;

function drawMap() {
  const map = $('map');
  map.replaceChildren();
  const uses = new Map();
  for (const r of device.rows) {
    if (!r[ROW.bytes]) continue;
    const use = useOf(r);
    if (!uses.has(use)) uses.set(use, new Map());
    const modules = uses.get(use), name = moduleOf(r);
    const cell = modules.get(name) || { name, bytes: 0, count: 0 };
    cell.bytes += r[ROW.bytes]; ++cell.count;
    modules.set(name, cell);
  }
  const blocks = [...uses].map(([use, modules]) => {
    const cells = [...modules.values()].sort((a, b) => b.bytes - a.bytes);
    return { use, cells, bytes: cells.reduce((sum, cell) => sum + cell.bytes, 0) };
  }).sort((a, b) => b.bytes - a.bytes);
  const put = (element, x, y, w, h) => Object.assign(element.style, { left: x + 'px', top: y + 'px', width: w + 'px', height: h + 'px' });
  squarify(blocks, 0, 0, map.clientWidth, map.clientHeight, (block, x, y, w, h) => {
    const box = make('div', 'use');
    put(box, x, y, w, h);
    box.style.background = colours[block.use] || '#666';
    box.title = block.use + ': ' + size(block.bytes);
    const title = h > 34 && w > 40;
    if (title) box.append(make('span', '', block.use + ' ' + size(block.bytes)));
    // Beyond some hundreds nobody can see them apart.
    const most = 300, cells = block.cells.slice(0, most);
    const rest = block.cells.slice(most);
    if (rest.length) cells.push({ name: '… ' + rest.length + ' more', bytes: rest.reduce((s, c) => s + c.bytes, 0), count: rest.reduce((s, c) => s + c.count, 0), rest: true });
    squarify(cells, 0, title ? 18 : 0, w, h - (title ? 18 : 0), (cell, cx, cy, cw, ch) => {
      const one = make('div', 'cell', cw > 34 && ch > 14 ? cell.name + (ch > 27 ? '\n' + size(cell.bytes) : '') : '');
      one.style.whiteSpace = 'pre-wrap';
      put(one, cx, cy, cw, ch);
      one.title = block.use + ', ' + cell.name + ': ' + size(cell.bytes) + ' in ' + cell.count + (cell.count === 1 ? ' storage' : ' storages');
      if (!cell.rest) {
        one.tabIndex = 0;
        one.setAttribute('role', 'button');
        one.setAttribute('aria-label', one.title);
        one.onclick = () => { only = { use: block.use, module: cell.name }; refresh(); };
        one.onkeydown = event => {
          if (event.key !== 'Enter' && event.key !== ' ') return;
          event.preventDefault();  // Space would scroll
          one.onclick();
        };
      }
      box.append(one);
    });
    map.append(box);
  });
  if (!blocks.length) map.append(make('span', 'faint', 'no bytes to show'));
}

const columns = [
  ['Name', ROW.name, r => r[ROW.owner] === null ? r[ROW.name] : r[ROW.name] + ' → ' + r[ROW.owner]],
  ['Shape', ROW.shape, r => texts[r[ROW.shape]]],
  ['Bytes', ROW.bytes, r => r[ROW.bytes] === null ? '?' : thousands(r[ROW.bytes])],
  [data.devices.some(one => one.rows.some(r => texts[r[ROW.part]])) ? 'For' : 'Role', ROW.role, useOf],
  ['Module', ROW.module, r => (r[ROW.output] ? 'output of ' : '') + texts[r[ROW.module]]],
  ['Dtype', ROW.dtype, r => texts[r[ROW.dtype]]],
  ['Made by', ROW.made, r => (texts[r[ROW.note]] ? texts[r[ROW.note]] + ' ' : '') + texts[r[ROW.made]]],
];

function drawHead() {
  const focused = [...$('head').children].indexOf(document.activeElement);
  $('head').replaceChildren(...columns.map(([title, field]) => {
    const button = make('button', field === ROW.bytes ? 'number' : '', title + (field === sortBy ? (ascending ? ' ▲' : ' ▼') : ''));
    button.setAttribute('role', 'columnheader');
    button.setAttribute('aria-sort', field !== sortBy ? 'none' : ascending ? 'ascending' : 'descending');
    button.onclick = () => {
      ascending = field === sortBy ? !ascending : field !== ROW.bytes;
      sortBy = field;
      refresh();
    };
    return button;
  }));
  if (focused >= 0) $('head').children[focused].focus({ preventScroll: true });
}

// What is worked out of a row is kept, as there may be a hundred thousand of them.
const sought = new WeakMap();
function soughtIn(r) {
  let text = sought.get(r);
  if (text === undefined) sought.set(r, text = columns.map(column => column[1] === ROW.bytes ? '' : column[2](r)).join('\n').toLowerCase());
  return text;
}
const orders = new Map();
function orderOf(field) {
  if (!orders.has(field)) orders.set(field, new WeakMap());
  const known = orders.get(field), show = columns.find(column => column[1] === field)[2];
  return r => {
    let key = known.get(r);
    // weight10 after weight9.
    if (key === undefined) known.set(r, key = show(r).replace(/\d+/g, digits => digits.padStart(12, '0')).toLowerCase());
    return key;
  };
}

function refresh() {
  const words = $('find').value.toLowerCase().split(/\s+/).filter(word => word);
  shown = device.rows.filter(r => {
    if (only && (useOf(r) !== only.use || moduleOf(r) !== only.module)) return false;
    return words.every(word => soughtIn(r).includes(word));
  });
  const key = sortBy === ROW.bytes ? r => r[ROW.bytes] === null ? -1 : r[ROW.bytes] : orderOf(sortBy);
  const keyed = shown.map(r => [key(r), r]);
  keyed.sort((a, b) => a[0] === b[0] ? 0 : (a[0] < b[0]) === ascending ? -1 : 1);
  shown = keyed.map(pair => pair[1]);
  const bytes = shown.reduce((sum, r) => sum + (r[ROW.bytes] || 0), 0);
  $('count').textContent = thousands(shown.length) + ' of ' + thousands(device.rows.length) + ' rows, ' + size(bytes) + (only ? ': ' + only.use + ', ' + only.module : '');
  $('all').hidden = !only && !words.length;
  drawHead();
  $('table').scrollTop = 0;
  drawRows();
}

// Only the rows in sight are in the page. Browsers limit an element's height, so very long tables
// scroll in larger steps.
const ROW_HEIGHT = 24, MOST_HEIGHT = 8000000;
function drawRows() {
  const table = $('table'), body = $('body');
  const whole = shown.length * ROW_HEIGHT, height = Math.min(whole, MOST_HEIGHT);
  const view = Math.max(0, table.clientHeight - $('head').offsetHeight);
  const top = table.scrollTop;
  const most = Math.max(0, height - view);
  const first = whole <= MOST_HEIGHT ? Math.floor(top / ROW_HEIGHT) : Math.round(most ? top / most * (shown.length - view / ROW_HEIGHT) : 0);
  const start = whole <= MOST_HEIGHT ? first * ROW_HEIGHT : top;
  body.style.cssText = 'position:relative;height:' + height + 'px';
  const rows = [];
  for (let i = Math.max(0, first); i < Math.min(shown.length, first + view / ROW_HEIGHT + 2); ++i) {
    const r = shown[i], row = make('div', 'row');
    row.setAttribute('role', 'row');
    row.style.top = (start + (i - first) * ROW_HEIGHT) + 'px';
    for (const [, field, show] of columns) {
      const cell = make('span', field === ROW.bytes ? 'number' : '', show(r));
      cell.setAttribute('role', 'cell');
      cell.title = field === ROW.name && r[ROW.owner] !== null ? cell.textContent + ', offset ' + (r[ROW.offset] ?? '?') + ', extent ' + (r[ROW.extent] ?? '?') : cell.textContent;
      if (field === ROW.role) {
        const swatch = make('i', 'swatch');
        swatch.style.background = colours[useOf(r)] || '#666';
        cell.prepend(swatch);
      }
      row.append(cell);
    }
    rows.push(row);
  }
  body.replaceChildren(...rows);
}

function drawTiles() {
  $('tiles').replaceChildren(...device.tiles.map(([title, value, bad]) => {
    const tile = make('div', bad ? 'tile bad' : 'tile', title);
    tile.prepend(make('b', '', value));
    return tile;
  }));
}

function choose(index) {
  device = data.devices[index];
  only = null;
  drawTiles();
  drawMap();
  refresh();
}

// Bytes at the end of each step, and the highest so far.
function drawCurves() {
  const W = 420, H = 110, svg = (tag, attributes) => {
    const e = document.createElementNS($('svg').namespaceURI, tag);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    return e;
  };
  for (const curve of data.curves || []) {
    const points = curve.points, first = points[0][0], last = points[points.length - 1][0];
    const top = Math.max(1, ...points.map(point => point[2]));
    const at = (step, bytes) => (6 + (W - 12) * (last > first ? (step - first) / (last - first) : 0.5)).toFixed(1) + ',' + (H - 6 - (H - 12) * bytes / top).toFixed(1);
    const drawing = svg('svg', { width: W, height: H, role: 'img', 'aria-label': 'Bytes of ' + curve.name + ' by step' });
    for (const [name, value] of [['peak', 2], ['bytes', 1]])
      drawing.append(svg('polyline', { class: name, points: points.map(point => at(point[0], point[value])).join(' ') }));
    const end = points[points.length - 1], figure = make('figure');
    figure.append(drawing, make('figcaption', 'faint', curve.name + ', step ' + first + ' to ' + last + ': ' + size(end[1]) + ' at the end of the last, highest so far ' + size(end[2]) + ' (dashed)'));
    $('curves').append(figure);
  }
  $('curves').hidden = !(data.curves || []).length;
}
$('when').textContent = data.title;
if (data.introduction) { $('introduction').textContent = data.introduction; $('introduction').hidden = false; }
drawCurves();
data.devices.forEach((one, i) => { const option = make('option', '', one.device); option.value = i; $('device').append(option); });
$('device').onchange = () => choose(Number($('device').value));
let waiting = 0;
$('find').oninput = () => { clearTimeout(waiting); waiting = setTimeout(refresh, 120); };
$('all').onclick = () => { only = null; $('find').value = ''; refresh(); };
$('table').onscroll = () => requestAnimationFrame(drawRows);
addEventListener('resize', () => { if (device) { drawMap(); drawRows(); } });
if (data.devices.length) choose(0); else $('count').textContent = 'No tensor is alive.';
</script>
</body>
</html>
)html";

}  // namespace memledger
