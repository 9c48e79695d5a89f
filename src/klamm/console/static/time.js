// Time: the cluster as it was after any event of the history, and how that event went.
import { Cli, counted, Failure, getBytes, getJson, historyCommand, html, micros, moment, number, setQuery, useCallback, useEffect, useLocation, useRef, useState } from "./base.js";
import { decodeMap, MapView } from "./map.js";
import { Story, useStory } from "./story.js";

const PHASES = [["queued", "queued"], ["reading", "read"], ["deciding", "decided"], ["writing", "written"], ["announcing", "announced"]];
const PLAY_MS = 700;

export function Phases({ event }) {
  const total = PHASES.reduce((sum, [key]) => sum + (event.phases[key] || 0), 0) || 1;
  let start = 0;
  return html`<div class="phases" role="img" aria-label=${`Phases: ${PHASES.map(([key, word]) => `${word} ${micros(event.phases[key])}`).join(", ")}`}>
    ${PHASES.map(([key, word]) => {
      const value = event.phases[key] || 0;
      const left = start;
      start += value;
      return html`<span>${word}</span><div class="track"><i style=${{ left: `${(100 * left) / total}%`, width: `${(100 * value) / total}%` }}></i></div><span class="num">${micros(value)}</span>`;
    })}
  </div>`;
}

export function Time({ cluster }) {
  const { query } = useLocation();
  const [past, setPast] = useState(null);
  const [position, setPosition] = useState(null);
  const [view, setView] = useState(null);
  const [error, setError] = useState(null);
  const [playing, setPlaying] = useState(false);
  const [story, setStory] = useStory();
  const asking = useRef(null);
  const asked = query.get("at");

  const load = useCallback(async () => {
    try {
      const found = await getJson("/api/history");
      setPast(found);
      setError(null);
      return found;
    } catch (failure) {
      setError(failure);
      return null;
    }
  }, []);
  useEffect(() => {
    load();
  }, []);
  // A link names an event; without one the history's end is shown.
  useEffect(() => {
    if (!past) return;
    let at = past.seq.length - 1;
    if (asked) {
      const [epoch, seq] = asked.split(":").map(Number);
      const found = past.seq.findIndex((each, n) => past.epoch[n] === epoch && each === seq);
      if (found >= 0) at = found;
    }
    setPosition(at);
  }, [past, asked]);
  useEffect(() => {
    if (position === null || !past) return;
    if (asking.current) asking.current.abort();
    const abort = new AbortController();
    asking.current = abort;
    getBytes(`/api/history/${past.epoch[position]}:${past.seq[position]}/map`, { signal: abort.signal })
      .then((buffer) => {
        setView({ map: decodeMap(buffer), position });
        setError(null);
      })
      .catch((failure) => failure.name === "AbortError" || setError(failure));
  }, [position, past]);
  const move = (at) => {
    const next = Math.max(0, Math.min(past.seq.length - 1, at));
    setQuery({ at: `${past.epoch[next]}:${past.seq[next]}` });
  };
  useEffect(() => {
    if (!playing || !past) return undefined;
    if (position >= past.seq.length - 1) {
      setPlaying(false);
      return undefined;
    }
    // From one event with decisions to the next: most others change nothing on the map.
    const timer = setTimeout(() => {
      let next = position + 1;
      while (next < past.seq.length - 1 && !past.decisions[next] && !past.failures[next]) next++;
      move(next);
    }, PLAY_MS);
    return () => clearTimeout(timer);
  }, [playing, position, past]);
  const failures = past ? Object.keys(past.failures).map(Number).sort((a, b) => a - b) : [];
  const nextFailure = failures.find((at) => at > position);
  const lastFailure = failures.filter((at) => at < position).pop();
  const event = view && view.map.event;
  const end = past ? past.seq.length - 1 : 0;
  return html`<div>
    <div class="head"><h1>Time</h1><span class="soft small">${past ? `${counted(past.seq.length, "event")}, ${moment(past.at[0])} to ${moment(past.at[end])}` : ""}</span></div>
    ${cluster && cluster.history_hint && !past ? html`<p class="note" id="no-history">${cluster.history_hint}</p>` : html`<${Failure} error=${error} />`}
    ${!past && !error ? html`<p class="soft">Reading…</p>` : null}
    ${past && position !== null ? html`<section class="card stack" aria-label="Moment">
      <div>
        <label class="hidden" for="position">Position in the history</label>
        <input type="range" id="position" min="0" max=${end} value=${position} onInput=${(change) => move(Number(change.target.value))}
          aria-valuetext=${`epoch ${past.epoch[position]}, event ${past.seq[position]}, ${moment(past.at[position])}`} />
        <div class="marks" aria-hidden="true">${failures.map((at) => html`<i style=${{ left: `${(100 * at) / Math.max(1, end)}%` }}></i>`)}</div>
      </div>
      <div class="player">
        <button onClick=${() => move(0)} aria-label="To the beginning">|◀</button>
        <button onClick=${() => move(lastFailure)} disabled=${lastFailure === undefined} id="previous-failure">◀ failure</button>
        <button onClick=${() => move(position - 1)} disabled=${position <= 0} id="step-back">◀ step</button>
        <button class="primary" onClick=${() => setPlaying(!playing)} id="play">${playing ? "Pause" : "Play"}</button>
        <button onClick=${() => move(position + 1)} disabled=${position >= end} id="step">step ▶</button>
        <button onClick=${() => move(nextFailure)} disabled=${nextFailure === undefined} id="next-failure">failure ▶</button>
        <button onClick=${async () => { const found = await load(); if (found) move(found.seq.length - 1); }} aria-label="To the end, read anew">▶|</button>
        <b id="moment" data-epoch=${past.epoch[position]} data-seq=${past.seq[position]} data-shown=${view && view.position === position ? "yes" : "no"}>${moment(past.at[position])} · epoch ${past.epoch[position]} #${past.seq[position]}</b>
      </div>
    </section>` : null}
    ${view ? html`<div class="columns" style=${{ marginTop: "1rem" }}>
      <section class="card" aria-label="The map at this moment"><${MapView} map=${view.map} onOpen=${setStory} /></section>
      <div class="stack">
        <section class="card" aria-label="Event">
          <h2>${event.kind}${event.failure ? html` <span class="tag bad">${event.failure}</span>` : ""}</h2>
          <p id="event">${event.text}</p>
          <p class="soft small">Cause: ${event.cause}. By broker ${event.controller}; ${number(event.decisions)} decisions; ${micros(event.total_us)} in all.</p>
          <${Phases} event=${event} />
        </section>
        <section class="card" aria-label="Failures"><h2>Failures</h2>
          ${failures.length ? html`<ol class="stream" tabindex="0" aria-label="Failures">${failures.slice(-300).reverse().map((at) => html`<li key=${at} class=${at === position ? "failure" : ""}>
            <div class="when"><button class="plain small-button" onClick=${() => move(at)}>${moment(past.at[at])}</button></div>${past.failures[at]}</li>`)}</ol>` : html`<p class="soft">None in this history.</p>`}
        </section>
      </div>
    </div>` : null}
    ${story ? html`<${Story} key=${story} name=${story} cluster=${cluster} onClose=${() => setStory(null)} />` : null}
    ${cluster ? html`<${Cli} command=${historyCommand(cluster)} cluster=${cluster} />` : null}
  </div>`;
}
