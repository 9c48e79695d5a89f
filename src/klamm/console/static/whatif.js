// What if: brokers or racks fail, and the controller's own kernels say what would become of it all.
import { Cli, counted, Failure, Figures, getJson, html, number, post, Rows, setQuery, sh, useEffect, useLocation, useState } from "./base.js";
import { Brokers } from "./map.js";
import { useMap } from "./now.js";

const OUTCOMES = { leaderless: ["no leader", "bad"], unclean: ["unclean, records lost", "bad"], below_min_isr: ["below min ISR", "warn"] };
const WORST = { broker: "The worst broker", pair: "The worst pair of brokers", rack: "The worst rack" };

function cost(row) {
  const parts = Object.keys(OUTCOMES).filter((key) => row[key]).map((key) => `${number(row[key])} ${OUTCOMES[key][0]}`);
  return parts.join(", ") || `nothing is lost, ${counted(row.leaders_moved, "leader")} move`;
}

export function WhatIf({ cluster }) {
  const { query } = useLocation();
  const { map, error: mapError } = useMap();
  const [worst, setWorst] = useState(null);
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  const kind = query.has("racks") ? "racks" : "brokers";
  const asked = query.get(kind) || "";
  const names = asked ? asked.split(",") : [];
  useEffect(() => {
    getJson("/api/whatif/worst").then(setWorst, setError);
  }, [map && map.version]);
  useEffect(() => {
    if (!asked) {
      setAnswer(null);
      setError(null);
      return undefined;
    }
    const abort = new AbortController();
    const body = { [kind]: kind === "brokers" ? names.map(Number) : names };
    post("/api/whatif", body, { signal: abort.signal }).then(
      (found) => {
        setAnswer(found);
        setError(null);
      },
      (failure) => failure.name === "AbortError" || setError(failure),
    );
    return () => abort.abort();
  }, [kind, asked, map && map.version]);
  const choose = (what, list) => setQuery({ brokers: what === "brokers" ? list.join(",") : null, racks: what === "racks" ? list.join(",") : null });
  const toggle = (place) => {
    const id = String(map.brokers[place].id);
    const now = kind === "brokers" ? names : [];
    choose("brokers", now.includes(id) ? now.filter((each) => each !== id) : [...now, id]);
  };
  const racks = map ? [...new Set(map.brokers.map((broker) => broker.rack).filter((rack) => rack !== null))].sort() : [];
  const toggleRack = (rack) => {
    const now = kind === "racks" ? names : [];
    choose("racks", now.includes(rack) ? now.filter((each) => each !== rack) : [...now, rack]);
  };
  const chosen = map ? map.brokers.map((broker, place) => (kind === "brokers" ? names.includes(String(broker.id)) : names.includes(broker.rack)) ? place : -1).filter((place) => place >= 0) : [];
  const most = answer ? Math.max(1, ...answer.brokers.map((each) => Math.max(each.leaders, each.leaders_before))) : 1;
  return html`<div>
    <div class="head"><h1>What if</h1><span class="soft small">Click brokers or racks that fail.</span></div>
    <${Failure} error=${mapError || error} />
    ${cluster && cluster.offline ? html`<p class="note" id="assumed">A saved history has no settings of topics: <code>min.insync.replicas</code> counts as 1, and unclean leaders are not elected.</p>` : null}
    <section class="card" aria-label="What fails">
      ${map ? html`<${Brokers} map=${map} chosen=${chosen} onChoose=${toggle} />` : html`<p class="soft">Reading the cluster…</p>`}
      ${racks.length ? html`<div class="row"><span class="soft small">Racks</span>${racks.map((rack) => html`<button key=${rack} data-rack=${rack} aria-pressed=${String(kind === "racks" && names.includes(rack))} onClick=${() => toggleRack(rack)}>rack ${rack}</button>`)}
        ${asked ? html`<button class="plain" onClick=${() => choose("brokers", [])}>clear</button>` : null}</div>` : null}
    </section>
    ${worst ? html`<section class="card" aria-label="The worst" id="worst"><div class="thirds">${Object.entries(WORST).filter(([key]) => worst[key] && worst[key].length).map(([key, title]) => html`<div>
        <h3>${title}</h3>
        <p><button class="plain" style=${{ paddingLeft: 0, color: "var(--accent)" }} onClick=${() => (key === "rack" ? choose("racks", worst[key][0].scenario.slice(6).split(",")) : choose("brokers", worst[key][0].failed))}><b>${worst[key][0].scenario}</b></button> <span class="soft">${cost(worst[key][0])}</span></p>
      </div>`)}</div></section>` : null}
    ${answer && asked ? html`<div class="stack" id="answer" data-scenario=${answer.scenario}>
      <${Figures} items=${[
        ["without a leader", number(answer.leaderless), answer.leaderless ? "bad" : "good"],
        ["unclean, records lost", number(answer.unclean), answer.unclean ? "bad" : "good"],
        ["below min ISR: no writes with acks=all", number(answer.below_min_isr), answer.below_min_isr ? "warn" : "good"],
        ["leaders move", number(answer.leaders_moved)],
        ["without a leader if all were in sync", number(answer.leaderless_in_sync)],
      ]} />
      <div class="halves">
        <section class="card" aria-label="Load"><h2>Who leads how much, before and after</h2>
          ${answer.brokers.length ? html`<div class="load">${answer.brokers.map((each) => html`<span>broker ${each.broker}</span>
            <div class="bar"><i class="was" style=${{ width: `${(100 * each.leaders_before) / most}%` }}></i><i class="now" style=${{ width: `${(100 * each.leaders) / most}%` }}></i></div>
            <span class="num">${number(each.leaders_before)} → <b>${number(each.leaders)}</b></span>`)}</div>` : html`<p class="soft">Nobody is left.</p>`}
        </section>
        <section class="card" aria-label="Topics"><h2>Topics that suffer</h2>
          <${Rows} items=${answer.topics.map((each) => ({ ...each, key: each.topic }))} max="20rem" empty="None." columns=${[
            ["topic", (each) => each.topic, "name"],
            ["no leader", (each) => number(each.leaderless), "num"],
            ["unclean", (each) => number(each.unclean), "num"],
            ["below min ISR", (each) => number(each.below_min_isr), "num"],
            ["of", (each) => number(each.partitions), "num"],
          ]} />
        </section>
      </div>
      <section class="card" aria-label="Partitions"><h2>Partitions that do not end well</h2>
        <${Rows} items=${answer.partitions.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} empty="Every partition keeps a leader with all committed records." columns=${[
          ["partition", (each) => each.key, "name"],
          ["outcome", (each) => html`<span class="tag ${OUTCOMES[each.outcome][1]}">${OUTCOMES[each.outcome][0]}</span>`],
          ["leader", (each) => (each.leader < 0 ? "none" : each.leader), "num"],
          ["ISR", (each) => each.isr.join(", ")],
          ["because of this", (each) => (each.changed ? "yes" : "was so before")],
        ]} />
      </section>
    </div>` : null}
    <${Cli} command=${`klamm snapshot --out snapshot`} cluster=${cluster} />
    ${cluster && cluster.offline ? null : html`<${Cli} command=${sh`klamm whatif --snapshot snapshot --set ${`${kind}:${asked || "1,2"}`} --out whatif --json`} cluster=${null} />`}
  </div>`;
}
