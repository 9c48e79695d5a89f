// Transactions: who makes them, what they hold, and which hang. A hanging one can be aborted.
import { Cli, Confirm, Failure, Figures, html, Link, moment, number, post, ReadOnly, Rows, setQuery, sh, Tabs, useApi, useLocation, useState } from "./base.js";

const STATES = ["Ongoing", "Empty", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"];
const LEVELS = { Ongoing: "accent", PrepareCommit: "accent", PrepareAbort: "warn", CompleteCommit: "good" };

export function Transactions({ cluster }) {
  const { path, query } = useLocation();
  const id = path.startsWith("/transactions/") ? decodeURIComponent(path.slice(14)) : null;
  if (id !== null) return html`<${Transaction} key=${id} id=${id} cluster=${cluster} />`;
  const tab = query.get("show") === "hanging" ? "hanging" : "all";
  return html`<div>
    <div class="head"><h1>Transactions</h1></div>
    <${Tabs} label="Transactions" chosen=${tab} items=${[["all", "all ids", "/transactions"], ["hanging", "hanging", "/transactions?show=hanging"]]} />
    ${tab === "hanging" ? html`<${Hanging} cluster=${cluster} />` : html`<${All} cluster=${cluster} />`}
  </div>`;
}

function All({ cluster }) {
  const { query } = useLocation();
  const state = query.get("state") || "";
  const { data, error } = useApi(`/api/transactions${state ? `?state=${encodeURIComponent(state)}` : ""}`, { every: 3000 });
  return html`<div>
    <${Failure} error=${error} />
    <section class="card stack" aria-label="Transactional ids">
      <label class="inline">State <select id="state" value=${state} onChange=${(event) => setQuery({ state: event.target.value })}><option value="">any</option>${STATES.map((each) => html`<option>${each}</option>`)}</select></label>
      <${Rows} items=${(data || []).map((each) => ({ ...each, key: each.transactional_id }))} empty=${data ? "There are no transactional ids." : "Reading…"} columns=${[
        ["transactional id", (each) => html`<${Link} to=${`/transactions/${encodeURIComponent(each.transactional_id)}`} data-transaction=${each.transactional_id}>${each.transactional_id}<//>`, "name"],
        ["state", (each) => html`<span class="tag ${LEVELS[each.state] || ""}">${each.state}</span>`],
        ["producer id", (each) => each.producer_id, "num"],
        ["coordinator", (each) => html`<${Link} to=${`/brokers/${each.coordinator}`}>${each.coordinator}<//>`, "num"],
      ]} />
    </section>
    <${Cli} command=${state ? sh`klamm transactions list --state ${state} --json` : "klamm transactions list --json"} cluster=${cluster} />
  </div>`;
}

function Transaction({ id, cluster }) {
  const { data, error } = useApi(`/api/transactions/${encodeURIComponent(id)}`, { every: 2000 });
  return html`<div>
    <div class="head"><h1><${Link} to="/transactions">Transactions<//> / ${id}</h1></div>
    <${Failure} error=${error} />
    ${data ? html`<div class="stack">
      <${Figures} items=${[["state", data.state], ["producer id", String(data.producer_id)], ["producer epoch", String(data.producer_epoch)], ["times out after", `${number(data.timeout_ms)} ms`], ["begun", data.start_ms < 0 ? "none is open" : moment(data.start_ms).slice(0, 19)]]} />
      <section class="card" aria-label="Partitions"><h2>Partitions of the open transaction</h2><${Rows} items=${data.partitions.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} empty="None." columns=${[
        ["partition", (each) => html`<${Link} to=${`/topics/${encodeURIComponent(each.topic)}`}>${each.topic}<//>-${each.partition}`, "name"],
      ]} /></section>
    </div>` : null}
    <${Cli} command=${sh`klamm transactions describe ${id} --json`} cluster=${cluster} />
  </div>`;
}

function Hanging({ cluster }) {
  const { query } = useLocation();
  const topic = query.get("topic") || "";
  const minutes = query.get("minutes") || "15";
  const address = `/api/hanging?${new URLSearchParams({ ...(topic ? { topic } : {}), minutes })}`;
  const { data, error, reload } = useApi(address);
  const [chosen, setChosen] = useState(null);
  const changes = cluster && cluster.allow_changes;
  const begun = (each) => `${each.topic}-${each.partition} from offset ${each.start_offset}`;
  return html`<div>
    <p class="soft small">A transaction hangs if its producer has been silent for longer than transactions may take, and no coordinator will end it. Readers of committed records wait behind it.</p>
    <${Failure} error=${error} />
    <section class="card stack" aria-label="Hanging transactions">
      <div class="form">
        <label>Topic <input id="hanging-topic" value=${topic} placeholder="all" onChange=${(event) => setQuery({ topic: event.target.value })} /></label>
        <label>Silent for minutes <input id="hanging-minutes" type="number" min="0" value=${minutes} onChange=${(event) => setQuery({ minutes: event.target.value })} /></label>
        <button onClick=${reload}>Look again</button>
      </div>
      <${Rows} items=${(data || []).map((each) => ({ ...each, key: begun(each) }))} empty=${data ? "No transaction hangs." : "Reading…"} columns=${[
        ["partition", (each) => html`<${Link} to=${`/topics/${encodeURIComponent(each.topic)}`}>${each.topic}<//>-${each.partition}`, "name"],
        ["start offset", (each) => number(each.start_offset), "num"],
        ["producer id", (each) => each.producer_id, "num"],
        ["epoch", (each) => each.producer_epoch, "num"],
        ["last heard of", (each) => moment(each.last_timestamp_ms).slice(0, 19)],
        ["", (each) => (changes ? html`<button class="danger small-button" data-abort=${`${each.topic}-${each.partition}`} onClick=${() => setChosen(each)}>abort</button>` : null)],
      ]} />
    </section>
    ${chosen ? html`<${Confirm} title="Abort a transaction" action="Abort it" danger onClose=${() => { setChosen(null); reload(); }} onConfirm=${() => post("/api/transactions/abort", { topic: chosen.topic, partition: chosen.partition, start_offset: chosen.start_offset })}>
      <p>The leader of <b>${chosen.topic}-${chosen.partition}</b> writes an abort marker for the transaction of producer ${chosen.producer_id} that began at offset ${number(chosen.start_offset)}. Readers of committed records never see what it wrote, and go on behind it. Its coordinator is not asked, and no other partition is changed.</p>
      <${Cli} command=${sh`klamm transactions abort --topic ${chosen.topic} --partition ${chosen.partition} --start-offset ${chosen.start_offset}`} cluster=${cluster} /><//>` : null}
    <${ReadOnly} cluster=${cluster} />
    <${Cli} command=${`klamm transactions hanging${topic ? sh` --topic ${topic}` : ""}${sh` --max-transaction-timeout ${minutes} --json`}`} cluster=${cluster} />
  </div>`;
}
