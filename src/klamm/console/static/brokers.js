// Brokers: what each leads and holds, its directories and settings, how fast it grows and answers.
import { bytes, Cli, Failure, Figures, html, Link, number, Rows, sh, useApi, useLocation } from "./base.js";
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

const perSecond = (rates, name) => rates[name] && rateOf(rates.at, rates[name]);
const a = (value) => `${number(Math.round(value * 10) / 10)}/s`;
const flow = (value) => `${bytes(Math.round(value))}/s`;
const ms = (value) => `${value.toFixed(value < 10 ? 1 : 0)} ms`;

// What the charts show: title, lines of (label, values, words), and the samples that a chart needs. A line without samples is left out.
const CHARTS = [
  ["Clients", (rates) => [["written in", perSecond(rates, "bytes_in"), flow], ["read out", perSecond(rates, "bytes_out"), flow]], "bytes_in"],
  ["Replication", (rates) => [["in", perSecond(rates, "replication_in"), flow], ["out", perSecond(rates, "replication_out"), flow]], "replication_in"],
  ["Records written by clients", (rates) => [["records", perSecond(rates, "records_in"), a]], "records_in"],
  ["Requests", (rates) => [["requests", perSecond(rates, "requests"), a], ["errors in answers", perSecond(rates, "errors"), a]], "requests"],
  ["Time for a produce request", (rates) => [["half within", rates.produce_p50_ms, ms], ["99 % within", rates.produce_p99_ms, ms]], "produce_p50_ms"],
  ["Time for a consumer's fetch (it may wait for records)", (rates) => [["half within", rates.consume_p50_ms, ms], ["99 % within", rates.consume_p99_ms, ms]], "consume_p50_ms"],
  ["Time for a follower's fetch (it may wait for records)", (rates) => [["half within", rates.replicate_p50_ms, ms], ["99 % within", rates.replicate_p99_ms, ms]], "replicate_p50_ms"],
  ["Records written to what it leads", (rates) => [["records", perSecond(rates, "end_offsets"), a]], "end_offsets"],
  ["Growth of its logs", (rates) => [["bytes", perSecond(rates, "bytes"), flow]], "bytes"],
  ["Time to answer the console", (rates) => [["one request", rates.answer_ms, ms]], "answer_ms"],
];

function Charts({ rates }) {
  if (!rates || rates.at.length < 2) return html`<p class="soft">Samples are taken every five seconds; the charts begin with the second.</p>`;
  const own = Boolean(rates.bytes_in);
  return html`<div id="charts" data-source=${own ? "metrics" : "protocol"}>
    <p class="soft small">${own
      ? "From the broker's own metrics, every five seconds, for an hour. Times are of the last thousand requests of their kind."
      : html`This broker serves no metrics to the console, so the charts have what Kafka's protocol gives: end offsets of what it leads, sizes of its logs (what retention deletes is not subtracted), the console's own requests. Brokers of klamm serve metrics with <code>klamm.metrics.port</code>; those of Apache Kafka are behind JMX.`}</p>
    <div class="halves">${CHARTS.filter(([, , needs]) => rates[needs]).map(([title, lines]) => html`<section class="card" key=${title} aria-label=${title}><h2>${title}</h2><${Chart} at=${rates.at} lines=${lines(rates).filter(([, values]) => values)} /></section>`)}</div>
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
      <${Charts} rates=${rates} />
      <section class="card" aria-label="Log directories"><h2>Log directories</h2><${Rows} items=${data.log_dirs.map((each) => ({ ...each, key: each.path }))} columns=${[
        ["directory", (each) => each.path, "name"], ["replicas", (each) => number(each.replicas), "num"], ["bytes", (each) => bytes(each.bytes), "num"],
        ["free", (each) => bytes(each.usable_bytes), "num"], ["of", (each) => bytes(each.total_bytes), "num"], ["error", (each) => (each.error ? html`<span class="tag bad">${each.error}</span>` : "")],
      ]} /></section>
      <${Settings} address=${`/api/brokers/${id}/settings`} resource=${{ broker: Number(id) }} cluster=${cluster} />
    </div>` : null}
    <${Cli} command=${sh`klamm brokers describe ${id} --json`} cluster=${cluster} />
  </div>`;
}
