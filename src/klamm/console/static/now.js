// Now: how the cluster is, who leads and follows, and what is being decided.
import { Cli, counted, Failure, getBytes, html, Link, moment, number, time, useEffect, useRef, useState } from "./base.js";
import { applyChange, decodeMap, MapView } from "./map.js";
import { Story, useStory } from "./story.js";

const SHOWN = 150;

const MARKS = {
  good: "M5 12.5l4.5 4.5L19 7.5",
  warn: "M12 8v5m0 3.2v.1M12 3.5 2.8 19.5h18.4z",
  bad: "M12 7.5v6m0 3.2v.1M12 2.8a9.2 9.2 0 1 0 .01 0z",
};

export function Health({ health }) {
  const level = health ? health.level : "warn";
  return html`<div class="health ${level}" role="status">
    <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${MARKS[level]} /></svg>
    <span id="health">${health ? health.text : "Looking at the cluster…"}</span>
  </div>`;
}

// The map, read once and changed as the cluster changes.
export function useMap() {
  const [state, setState] = useState({ map: null, error: null, version: 0 });
  const map = useRef(null);
  useEffect(() => {
    let stopped = false;
    let loading = false;
    let again = false;
    const load = async () => {
      if (loading) {
        again = true;
        return;
      }
      loading = true;
      try {
        map.current = decodeMap(await getBytes("/api/map"));
        if (!stopped) setState({ map: map.current, error: null, version: map.current.version });
      } catch (error) {
        if (!stopped) {
          setState((last) => ({ ...last, error }));
          setTimeout(load, 1000);
        }
      }
      loading = false;
      if (again && !stopped) {
        again = false;
        load();
      }
    };
    load();
    const source = new EventSource("/api/changes");
    let opened = false;
    source.onopen = () => {
      if (opened) load(); // what happened in between is not known
      opened = true;
    };
    source.onmessage = (message) => {
      const change = JSON.parse(message.data);
      if (!map.current || !applyChange(map.current, change)) load();
      else setState({ map: map.current, error: null, version: change.version });
    };
    source.onerror = () => setState((last) => ({ ...last, error: new Error("The console does not answer; trying again.") }));
    return () => {
      stopped = true;
      source.close();
    };
  }, []);
  return state;
}

// The newest events from which something came, and the newest others: with a hundred brokers, their responses to one
// decision would push it off the page.
function newest(events) {
  const kept = new Set([true, false].flatMap((tells) => events.filter((event) => event.tells === tells).slice(-SHOWN)));
  return events.filter((event) => kept.has(event));
}

// The newest decisions; a burst is drawn once, not once for each.
export function useDecisions() {
  const [events, setEvents] = useState([]);
  useEffect(() => {
    const source = new EventSource("/api/events");
    let waiting = [];
    let timer = 0;
    const flush = () => {
      timer = 0;
      const fresh = waiting;
      waiting = [];
      setEvents((last) => {
        const known = new Set(last.map((event) => event.id));
        return newest([...last, ...fresh.filter((event) => !known.has(event.id))]);
      });
    };
    source.onmessage = (message) => {
      waiting.push(JSON.parse(message.data));
      if (waiting.length > 8 * SHOWN) waiting = newest(waiting);
      if (!timer) timer = setTimeout(flush, 60);
    };
    return () => {
      source.close();
      clearTimeout(timer);
    };
  }, []);
  return events;
}

// Who asked for it, where a client did and not a broker or a timer.
function asker(event) {
  const found = /^(?:AlterPartitionReassignments|ElectLeaders) request of '(.+)'$/.exec(event.cause);
  return found && found[1];
}

export function Decision({ event, onOpen }) {
  return html`<li class=${event.failure ? "failure" : ""} data-event=${event.id}>
    <div class="when"><${Link} to=${`/time?at=${event.id}`} title=${moment(event.at)}>${time(event.at)}<//><span>epoch ${event.controller_epoch} #${event.seq}</span><span>${event.kind}</span>${asker(event) ? html`<span>by ${asker(event)}</span>` : null}</div>
    ${event.text}
    ${onOpen && event.partitions.length ? html` <button class="plain small-button" onClick=${() => onOpen(event.partitions[0])}>story</button>` : null}
  </li>`;
}

export function Now({ cluster, refresh }) {
  const { map, error } = useMap();
  const events = useDecisions();
  const [all, setAll] = useState(false);
  const [story, setStory] = useStory();
  const shown = (all ? events : events.filter((event) => event.tells)).slice().reverse();
  const controller = map && map.controller >= 0 ? map.controller : null;
  useEffect(() => {
    if (controller !== null && cluster && cluster.controller !== controller) refresh(); // since when is known there
  }, [controller]);
  const since = cluster && cluster.controller === controller ? cluster.controller_since : null;
  return html`<div>
    <div class="head"><h1>Now</h1>${cluster && cluster.cluster_id ? html`<span class="soft small">cluster <code>${cluster.cluster_id}</code></span>` : null}</div>
    <${Health} health=${map && map.health} />
    <${Failure} error=${error} />
    <div class="columns">
      <section class="card" aria-label="Map">
        ${map ? html`<p class="soft small">${counted(map.topics.length, "topic")}, ${counted(map.rows, "partition")}.
          ${controller === null ? " Nobody is controller." : html` Controller is broker <b>${controller}</b>${since ? ` since ${moment(since).slice(0, 19)}` : ""}.`}</p>
        <${MapView} map=${map} onOpen=${setStory} />` : html`<p class="soft">Reading the cluster…</p>`}
      </section>
      <section class="card" aria-label="Decisions">
        <div class="row"><h2>Decisions</h2><span class="soft small">live</span>
          <label class="inline small"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> every event</label></div>
        ${shown.length ? html`<ol class="stream" id="decisions" tabindex="0" aria-label="Decisions, the newest first">${shown.map((event) => html`<${Decision} key=${event.id} event=${event} onOpen=${setStory} />`)}</ol>`
          : html`<p class="soft">${cluster && cluster.history_hint ? cluster.history_hint : "Nothing was decided yet."}</p>`}
      </section>
    </div>
    ${story ? html`<${Story} key=${story} name=${story} cluster=${cluster} onClose=${() => setStory(null)} />` : null}
    <${Cli} command="klamm topics describe --json" cluster=${cluster} />
  </div>`;
}
