// The map: brokers by rack against partitions. Up to 2,000 partitions are elements; more are tiles
// on a canvas, of which 100,000 are drawn in a few milliseconds.
import { counted, html, number, useEffect, useMemo, useRef, useState } from "./base.js";

export const ELEMENTS_MAX = 2000;
const STACKED_BROKERS_MAX = 16;

// The bytes of /api/map: a header in JSON, then leader, replicas and isr as places of brokers.
export function decodeMap(buffer) {
  const size = new DataView(buffer).getInt32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const Cells = head.cell_bytes === 1 ? Uint8Array : Uint16Array;
  const nobody = head.cell_bytes === 1 ? 255 : 65535;
  const rows = head.counts.reduce((sum, count) => sum + count, 0);
  let at = 4 + size;
  const take = (count) => {
    const cells = new Cells(buffer, at, count);
    at += count * head.cell_bytes;
    return cells;
  };
  const map = { ...head, rows, nobody };
  map.leader = take(rows);
  map.replicas = take(rows * head.replicas_width);
  map.isr = take(rows * head.isr_width);
  map.first = new Int32Array(head.topics.length + 1);
  head.counts.forEach((count, n) => (map.first[n + 1] = map.first[n] + count));
  return map;
}

export function topicOf(map, row) {
  let [low, high] = [0, map.topics.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (map.first[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}

export function nameOf(map, row) {
  const topic = topicOf(map, row);
  const part = map.partition ? map.partition[row] : row - map.first[topic];
  return `${map.topics[topic]}-${part}`;
}

function idsOf(map, cells, width, row) {
  const ids = [];
  for (let slot = row * width; slot < (row + 1) * width; slot++) {
    if (cells[slot] !== map.nobody) ids.push(map.brokers[cells[slot]].id);
  }
  return ids;
}
export const replicasOf = (map, row) => idsOf(map, map.replicas, map.replicas_width, row);
export const isrOf = (map, row) => idsOf(map, map.isr, map.isr_width, row);
export const leaderOf = (map, row) => (map.leader[row] === map.nobody ? -1 : map.brokers[map.leader[row]].id);

// Draw a change over the map; false where it has to be read again.
export function applyChange(map, change) {
  const same = change.layout === map.layout && change.rows !== null
    && change.brokers.length === map.brokers.length
    && change.brokers.every((broker, n) => broker.id === map.brokers[n].id);
  if (!same) return false;
  const place = new Map(change.brokers.map((broker, n) => [broker.id, n]));
  for (const lists of [change.replicas, change.isr]) {
    const width = lists === change.replicas ? map.replicas_width : map.isr_width;
    if (lists.some((list) => list.length > width)) return false;
  }
  map.brokers = change.brokers;
  map.controller = change.controller;
  map.health = change.health;
  map.version = change.version;
  const write = (cells, width, row, ids) => {
    for (let slot = 0; slot < width; slot++) {
      cells[row * width + slot] = slot < ids.length ? place.get(ids[slot]) : map.nobody;
    }
  };
  change.rows.forEach((row, n) => {
    map.leader[row] = place.has(change.leader[n]) ? place.get(change.leader[n]) : map.nobody;
    write(map.replicas, map.replicas_width, row, change.replicas[n]);
    write(map.isr, map.isr_width, row, change.isr[n]);
  });
  map.changed = new Set(change.rows);
  return true;
}

// l: leads, f: follows in sync, o: out of sync, g: its broker is gone
function role(map, row, place) {
  if (map.leader[row] === place) return "l";
  if (!map.brokers[place].live) return "g";
  for (let slot = row * map.isr_width; slot < (row + 1) * map.isr_width; slot++) {
    if (map.isr[slot] === place) return "f";
  }
  return "o";
}

// How a partition is by itself, or (with a chosen broker) to that broker.
function stateOf(map, row, chosen) {
  const width = map.replicas_width;
  if (chosen >= 0) {
    for (let slot = row * width; slot < (row + 1) * width; slot++) {
      if (map.replicas[slot] === chosen) return role(map, row, chosen);
    }
    return "";
  }
  if (map.leader[row] === map.nobody) return "g";
  let [replicas, isr] = [0, 0];
  for (let slot = row * width; slot < (row + 1) * width; slot++) replicas += map.replicas[slot] !== map.nobody;
  for (let slot = row * map.isr_width; slot < (row + 1) * map.isr_width; slot++) isr += map.isr[slot] !== map.nobody;
  return isr < replicas ? "o" : "f";
}

export function loads(map) {
  const counts = map.brokers.map(() => ({ leads: 0, holds: 0, lags: 0 }));
  const width = map.replicas_width;
  for (let row = 0; row < map.rows; row++) {
    if (map.leader[row] !== map.nobody) counts[map.leader[row]].leads++;
    for (let slot = row * width; slot < (row + 1) * width; slot++) {
      const place = map.replicas[slot];
      if (place === map.nobody) continue;
      counts[place].holds++;
      const now = role(map, row, place);
      if (now === "o" || now === "g") counts[place].lags++;
    }
  }
  return counts;
}

// The brokers by rack; a click chooses one.
export function Brokers({ map, chosen, onChoose, detail }) {
  const counts = useMemo(() => loads(map), [map, map.version]);
  const racks = new Map();
  map.brokers.forEach((broker, place) => {
    const rack = broker.rack === null ? "" : broker.rack;
    racks.set(rack, [...(racks.get(rack) || []), place]);
  });
  const words = detail || ((place) => `leads ${number(counts[place].leads)} of ${number(counts[place].holds)}`
    + (counts[place].lags ? `, ${number(counts[place].lags)} out of sync` : ""));
  return html`<div class="racks ${map.brokers.length > 24 ? "many" : ""}" role="group" aria-label="Brokers by rack">
    ${[...racks].sort(([a], [b]) => (a < b ? -1 : 1)).map(([rack, places]) => html`<div class="rack">
      <h3>${rack ? `rack ${rack}` : "no rack"}</h3>
      <div>${places.map((place) => {
        const broker = map.brokers[place];
        const leads = broker.id === map.controller;
        return html`<button class="broker" key=${broker.id} data-broker=${broker.id} data-state=${broker.live ? "live" : "down"}
          data-controller=${String(leads)} aria-pressed=${String([].concat(chosen).includes(place))} onClick=${() => onChoose(place)}>
          <b><i class="dot"></i>${broker.id}${leads ? html`<span class="tag accent">controller</span>` : ""}${broker.live ? "" : html`<span class="tag bad">down</span>`}</b>
          <span>${words(place)}</span>
        </button>`;
      })}</div>
    </div>`)}
  </div>`;
}

function Partition({ map, row, name, order, chosen, stacked, onOpen, version }) {
  const replicas = replicasOf(map, row);
  const isr = isrOf(map, row);
  const leader = leaderOf(map, row);
  const state = stateOf(map, row, chosen);
  const flash = map.changed && map.changed.has(row) ? "flash" : "";
  const words = `${name}: ${leader < 0 ? "no leader" : `leader ${leader}`}, in sync ${isr.join(", ") || "nobody"} of ${replicas.join(", ")}`;
  const kind = stacked ? (chosen >= 0 && !state ? "dim" : "") : state;
  return html`<button class="p ${kind} ${leader < 0 ? "leaderless" : ""} ${flash}" tabindex="-1" data-partition=${name} data-leader=${leader}
    data-isr=${isr.join(",")} data-replicas=${replicas.join(",")} aria-label=${words} title=${words} onClick=${() => onOpen(name)}
    style=${stacked ? { gridTemplateRows: `repeat(${order.size}, 13px)` } : undefined}>
    ${stacked ? replicas.map((id) => {
      const place = order.get(id);
      return html`<i class=${role(map, row, place.place)} style=${{ gridRow: place.line }}></i>`;
    }) : null}
  </button>`;
}

function Elements({ map, chosen, onOpen }) {
  const box = useRef(null);
  const stacked = map.brokers.length <= STACKED_BROKERS_MAX;
  // Lines are brokers, rack by rack.
  const order = useMemo(() => {
    const places = map.brokers.map((broker, place) => ({ broker, place }));
    places.sort((a, b) => String(a.broker.rack).localeCompare(String(b.broker.rack)) || a.broker.id - b.broker.id);
    return new Map(places.map(({ broker, place }, line) => [broker.id, { place, line: line + 1 }]));
  }, [map.brokers]);
  useEffect(() => {
    const first = box.current && box.current.querySelector("[data-partition]");
    if (first && !box.current.querySelector('[data-partition][tabindex="0"]')) first.tabIndex = 0;
  });
  // One stop for the tab key, arrows within.
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...box.current.querySelectorAll("[data-partition]")];
    const next = all[all.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    all.forEach((each) => (each.tabIndex = -1));
    next.tabIndex = 0;
    next.focus();
  };
  return html`<div class="map ${stacked ? "" : "tiles"}" ref=${box} onKeyDown=${onKeyDown} role="group" aria-label="Partitions by topic; arrow keys move between them">
    ${map.topics.map((topic, n) => html`<section class="topic" key=${topic}>
      <h3>${topic} <small>${map.counts[n]}</small></h3>
      <div class="strip">
        ${stacked ? html`<div class="ids" aria-hidden="true">${[...order].map(([id]) => html`<span>${id}</span>`)}</div>` : null}
        ${Array.from({ length: map.counts[n] }, (_, k) => {
          const row = map.first[n] + k;
          const part = map.partition ? map.partition[row] : k;
          const name = `${topic}-${part}`;
          return html`<${Partition} key=${name} map=${map} row=${row} name=${name} order=${order} chosen=${chosen} stacked=${stacked} onOpen=${onOpen} version=${map.version} />`;
        })}
      </div>
    </section>`)}
  </div>`;
}

function Tiles({ map, chosen, onOpen }) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(800);
  const [cursor, setCursor] = useState(-1);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(200, Math.floor(entry.contentRect.width))));
    watch.observe(canvas.current.parentElement);
    return () => watch.disconnect();
  }, []);
  const size = Math.max(3, Math.min(14, Math.floor(Math.sqrt((width * 760) / Math.max(1, map.rows)))));
  const perLine = Math.max(1, Math.floor(width / size));
  const height = Math.ceil(map.rows / perLine) * size;
  useEffect(() => {
    const ratio = devicePixelRatio || 1;
    const node = canvas.current;
    node.width = width * ratio;
    node.height = height * ratio;
    const draw = node.getContext("2d");
    draw.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const fills = { l: colour("--leader"), f: colour("--follower"), o: colour("--lagging"), g: colour("--bad"), "": colour("--empty") };
    // By colour, so that the pen changes a few times and not once for each tile.
    const groups = { l: [], f: [], o: [], g: [], "": [] };
    for (let row = 0; row < map.rows; row++) groups[stateOf(map, row, chosen)].push(row);
    const gap = size > 4 ? 1 : 0.5;
    for (const [state, rows] of Object.entries(groups)) {
      draw.fillStyle = fills[state];
      for (const row of rows) {
        draw.fillRect((row % perLine) * size, Math.floor(row / perLine) * size, size - gap, size - gap);
      }
    }
    if (cursor >= 0) {
      draw.strokeStyle = colour("--ink");
      draw.lineWidth = 2;
      draw.strokeRect((cursor % perLine) * size - 1, Math.floor(cursor / perLine) * size - 1, size + 1, size + 1);
    }
  }, [map, map.version, width, height, chosen, cursor, document.documentElement.dataset.theme]);
  const rowAt = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / size) * perLine + Math.floor((event.clientX - box.left) / size);
    return row >= 0 && row < map.rows ? row : -1;
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && cursor >= 0) return onOpen(nameOf(map, cursor));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perLine, ArrowUp: -perLine }[event.key];
    if (!step) return undefined;
    event.preventDefault();
    return setCursor((row) => Math.min(map.rows - 1, Math.max(0, row + step)));
  };
  const told = cursor < 0 ? `${counted(map.rows, "partition")}, one tile each, topic by topic. Point at one, or use the arrow keys; Enter tells its story.`
    : `${nameOf(map, cursor)}: ${leaderOf(map, cursor) < 0 ? "no leader" : `leader ${leaderOf(map, cursor)}`}, in sync ${isrOf(map, cursor).join(", ")} of ${replicasOf(map, cursor).join(", ")}`;
  return html`<div>
    <canvas class="tiles" ref=${canvas} tabindex="0" role="application" aria-label="All partitions as tiles" style=${{ height: `${height}px` }}
      onMouseMove=${(event) => setCursor(rowAt(event))} onClick=${(event) => { const row = rowAt(event); if (row >= 0) onOpen(nameOf(map, row)); }} onKeyDown=${onKeyDown}></canvas>
    <p class="tip" aria-live="polite">${told}</p>
  </div>`;
}

export function MapView({ map, onOpen }) {
  const [chosen, setChosen] = useState(-1);
  const small = map.rows <= ELEMENTS_MAX;
  const many = !small && chosen < 0;
  return html`<div>
    <${Brokers} map=${map} chosen=${chosen} onChoose=${(place) => setChosen(place === chosen ? -1 : place)} />
    ${small ? html`<${Elements} map=${map} chosen=${chosen} onOpen=${onOpen} />` : html`<${Tiles} map=${map} chosen=${chosen} onOpen=${onOpen} />`}
    <ul class="key">
      ${many ? html`<li><i class="f"></i>in order</li><li><i class="o"></i>under-replicated</li><li><i class="g"></i>no leader</li><li>Choose a broker to see what it leads and holds.</li>`
        : html`<li><i class="l"></i>leads</li><li><i class="f"></i>follows, in sync</li><li><i class="o"></i>out of sync</li><li><i class="g"></i>its broker is gone</li>${small ? html`<li><i class="none"></i>no leader</li>` : null}`}
    </ul>
  </div>`;
}
