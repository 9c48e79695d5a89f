// Brokers: what each leads and holds, its directories and settings, how fast it grows and answers.
import { bytes, Cli, Failure, Figures, html, Link, number, Rows, useApi, useLocation } from "./base.js";
import { Chart, rateOf } from "./chart.js";
import { Settings } from "./topics.js";

export function BrokerPages({ cluster }) {
  const { path } = useLocation();
  const id = /^\/brokers\/(\d+)$/.exec(path);
  return id ? html`<${Broker} key=${id[1]} id=${id[1]} cluster=${cluster} />` : html`<${BrokerList} cluster=${cluster} />`;
}

function BrokerList({ cluster }) {
  const { data, error } = useApi("/api/brokers", { every: 3000 });
  const down = cluster ? cluster.brokers.filter((broker) => broker.state === "down") : [];
  return html`<div>
    <div class="head"><h1>Brokers</h1></div>
    <${Failure} error=${error} />
    ${down.length ? html`<p class="note bad">Down: ${down.map((broker) => broker.id).join(", ")}.</p>` : null}
    <section class="card" aria-label="Brokers"><${Rows} items=${(data || []).map((each) => ({ ...each, key: each.id }))} empty=${data ? "No broker is alive." : "Reading…"} columns=${[
      ["broker", (each) => html`<${Link} to=${`/brokers/${each.id}`}>${each.id}<//>${each.controller ? html` <span class="tag accent">controller</span>` : ""}`],
      ["address", (each) => `${each.host}:${each.port}`], ["rack", (each) => each.rack || "–"],
      ["leads", (each) => number(each.leaders), "num"], ["preferred for", (each) => number(each.preferred), "num"], ["replicas", (each) => number(each.replicas), "num"],
    ]} /></section>
    <${Cli} command="klamm brokers list --json" cluster=${cluster} />
  </div>`;
}

function Broker({ id, cluster }) {
  const { data, error } = useApi(`/api/brokers/${id}`, { every: 5000 });
  const { data: rates } = useApi(`/api/rates/${id}`, { every: 5000 });
  return html`<div>
    <div class="head"><h1><${Link} to="/brokers">Brokers<//> / ${id}</h1>${data && data.controller ? html`<span class="tag accent">controller</span>` : null}</div>
    <${Failure} error=${error} />
    ${data ? html`<div class="stack">
      <${Figures} items=${[["address", `${data.host}:${data.port}`], ["rack", data.rack || "none"], ["leads", number(data.leaders)], ["replicas", number(data.replicas)], ["on disk", bytes(data.log_dirs.reduce((sum, each) => sum + each.bytes, 0))]]} />
      ${rates && rates.at.length > 1 ? html`<div class="halves">
        <section class="card" aria-label="Growth"><h2>Written to its logs</h2><${Chart} at=${rates.at} lines=${[["per second", rateOf(rates.at, rates.bytes), bytes]]} /></section>
        <section class="card" aria-label="Latency"><h2>Time to answer the console</h2><${Chart} at=${rates.at} lines=${[["milliseconds", rates.latency_ms, (value) => `${value.toFixed(1)} ms`]]} /></section>
      </div>` : null}
      <section class="card" aria-label="Log directories"><h2>Log directories</h2><${Rows} items=${data.log_dirs.map((each) => ({ ...each, key: each.path }))} columns=${[
        ["directory", (each) => each.path, "name"], ["replicas", (each) => number(each.replicas), "num"], ["bytes", (each) => bytes(each.bytes), "num"],
        ["free", (each) => bytes(each.usable_bytes), "num"], ["of", (each) => bytes(each.total_bytes), "num"], ["error", (each) => (each.error ? html`<span class="tag bad">${each.error}</span>` : "")],
      ]} /></section>
      <${Settings} address=${`/api/brokers/${id}/settings`} resource=${{ broker: Number(id) }} cluster=${cluster} />
    </div>` : null}
    <${Cli} command=${`klamm brokers describe ${id} --json`} cluster=${cluster} />
  </div>`;
}
