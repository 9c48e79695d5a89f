// Moves: a plan is previewed with what it costs, run wave by wave, paused, cancelled. Elections, too.
import { bytes, Cli, Confirm, counted, Failure, Figures, html, moment, number, post, ReadOnly, Rows, seconds, setQuery, sh, useApi, useEffect, useLocation, useState } from "./base.js";

const GOALS = { balance: "Balance and repair racks", remove: "Drain brokers", add: "Use new brokers", factor: "Change a replication factor" };
const ENDS = { done: ["good", "All of it has arrived."], cancelled: ["warn", "It was cancelled; what had arrived stays."], failed: ["bad", "It has failed."] };

export function Moves({ cluster }) {
  const { data, error, reload } = useApi("/api/moves", { every: 1000 });
  return html`<div>
    <div class="head"><h1>Moves</h1></div>
    <${Failure} error=${error} />
    ${data && data.job ? html`<${Job} job=${data.job} cluster=${cluster} reload=${reload} />` : null}
    <${Plan} cluster=${cluster} reload=${reload} running=${data && data.job && ["running", "paused", "cancelling"].includes(data.job.status)} />
    ${data && data.under_way.length ? html`<section class="card" aria-label="Under way"><h2>Under way in the cluster</h2><${Rows} max="22rem" items=${data.under_way.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} columns=${[
      ["partition", (each) => each.key, "name"], ["replicas", (each) => each.replicas.join(", ")], ["adding", (each) => each.adding.join(", ")], ["removing", (each) => each.removing.join(", ")],
    ]} /></section>` : null}
    <${Elections} cluster=${cluster} />
    <${Actions} />
    <${ReadOnly} cluster=${cluster} />
    <${Cli} command="klamm reassign list --json" cluster=${cluster} />
  </div>`;
}

// Who changed what from consoles of this cluster.
function Actions() {
  const { data } = useApi("/api/actions", { every: 3000 });
  if (!data || !data.length) return null;
  return html`<section class="card" aria-label="Actions"><h2>Done from the console</h2><${Rows} max="20rem" items=${data.map((each, n) => ({ ...each, key: `${each.at} ${n}` }))} columns=${[
    ["when", (each) => moment(each.at)], ["who", (each) => each.user], ["what", (each) => each.action],
    ["with", (each) => html`<code>${JSON.stringify(each.with)}</code>`, "name"],
    ["", (each) => (each.error ? html`<span class="tag bad" title=${each.error}>refused</span>` : html`<span class="tag good">done</span>`)],
  ]} /></section>`;
}

const STEERS = {
  pause: ["Pause the plan", "Pause it", "The wave that is moving goes to its end; the next one waits until you say so. Throttles of the wave are removed with it."],
  resume: ["Go on with the plan", "Go on", "The next wave begins, with the same throttle."],
  cancel: ["Cancel the plan", "Cancel it", "Partitions that are moving go back to the replicas they had. Those that have arrived stay. Throttles are removed."],
};

function Job({ job, cluster, reload }) {
  const [asking, setAsking] = useState(null);
  const active = ["running", "paused", "cancelling"].includes(job.status);
  const share = job.bytes ? job.bytes_done / job.bytes : job.partitions_done / Math.max(1, job.partitions);
  return html`<section class="card" aria-label="Running plan" id="job" data-status=${job.status}>
    <div class="row"><h2>${job.status === "paused" ? "A plan is paused" : active ? "A plan is running" : "The last plan"}</h2><span class="tag ${active ? "accent" : ENDS[job.status][0]}">${job.status}</span><span class="soft small">by ${job.user}</span></div>
    <div class="bar" role="progressbar" aria-valuenow=${Math.round(100 * share)} aria-valuemin="0" aria-valuemax="100" aria-label="Progress"><i style=${{ width: `${100 * (job.status === "done" ? 1 : share)}%` }}></i></div>
    <p style=${{ marginTop: ".6rem" }}>${number(job.partitions_done)} of ${counted(job.partitions, "partition")} ${job.bytes ? `(${bytes(job.bytes_done)} of ${bytes(job.bytes)})` : ""}; wave ${job.wave} of ${job.waves}${active && job.seconds_left !== null ? `; about ${seconds(job.seconds_left)} left` : ""}${job.throttle ? `; at most ${bytes(job.throttle)} a second for each broker` : ""}.
      ${job.status === "paused" ? " It waits until somebody goes on with it, also after a restart of the console." : active ? " It goes on when this page is closed, and after a restart of the console." : ` ${ENDS[job.status][1]}`}</p>
    ${job.message ? html`<p class="note ${job.status === "failed" ? "bad" : ""}">${job.message}</p>` : null}
    ${active && job.status !== "cancelling" && cluster && cluster.allow_changes ? html`<div class="row">
      ${job.status === "running" ? html`<button onClick=${() => setAsking("pause")} id="pause">Pause after this wave</button>` : html`<button class="primary" onClick=${() => setAsking("resume")} id="resume">Go on</button>`}
      <button class="danger" onClick=${() => setAsking("cancel")} id="cancel">Cancel</button></div>` : null}
    ${asking ? html`<${Confirm} title=${STEERS[asking][0]} action=${STEERS[asking][1]} danger=${asking === "cancel"} onClose=${() => setAsking(null)} onConfirm=${() => post(`/api/moves/${asking}`).then(reload)}>
      <p>${STEERS[asking][2]}</p><//>` : null}
  </section>`;
}

function Plan({ cluster, reload, running }) {
  const { query } = useLocation();
  const [form, setForm] = useState({ goal: GOALS[query.get("goal")] ? query.get("goal") : "balance", brokers: query.get("brokers") || "", factor: query.get("factor") || "3", topics: query.get("topics") || "", pin: query.get("pin") || "", throttle: "", wave: query.get("wave") || "" });
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [confirming, setConfirming] = useState(false);
  const set = (field) => (event) => { setForm({ ...form, [field]: event.target.value }); setPlan(null); };
  const body = () => {
    const ids = form.brokers.split(",").map((id) => id.trim()).filter(Boolean).map(Number);
    const asked = {};
    if (form.goal === "remove" || form.goal === "add") asked[form.goal] = ids;
    if (form.goal === "factor") Object.assign(asked, { replication_factor: Number(form.factor), topics: form.topics || ".*" });
    if (form.pin) asked.pin = form.pin;
    if (form.wave) asked.wave_moves = Number(form.wave);
    return asked;
  };
  const preview = async () => {
    setBusy(true);
    const isFactor = form.goal === "factor";
    setQuery({ goal: form.goal, brokers: form.goal === "remove" || form.goal === "add" ? form.brokers : null, factor: isFactor ? form.factor : null, topics: isFactor ? form.topics : null, pin: form.pin, wave: form.wave });
    try {
      setPlan(await post("/api/plans", body()));
      setError(null);
    } catch (failure) {
      setError(failure);
      setPlan(null);
    }
    setBusy(false);
  };
  useEffect(() => {
    if (query.get("goal")) preview(); // the link of a preview
  }, []);
  const rate = form.throttle ? Math.round(Number(form.throttle) * 1e6) : null;
  const summary = plan && plan.summary;
  const brokers = form.brokers.replaceAll(" ", "");
  const goal = { balance: "", remove: sh` --remove-brokers ${brokers}`, add: sh` --add-brokers ${brokers}`, factor: `${sh` --set-rf ${form.factor}`}${form.topics ? sh` --topics ${form.topics}` : ""}` }[form.goal];
  const flags = `${goal}${form.pin ? sh` --pin ${form.pin}` : ""}${form.wave ? sh` --wave-moves ${form.wave}` : ""}`;
  return html`<section class="card" aria-label="Plan">
    <h2>Plan</h2>
    <div class="form">
      <label>Goal <select id="goal" value=${form.goal} onChange=${set("goal")}>${Object.entries(GOALS).map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select></label>
      ${form.goal === "remove" || form.goal === "add" ? html`<label>Brokers <input id="plan-brokers" value=${form.brokers} onInput=${set("brokers")} placeholder="3, 4" /></label>` : null}
      ${form.goal === "factor" ? html`<label>Replicas <input id="factor" type="number" min="1" value=${form.factor} onInput=${set("factor")} /></label><label>Topics (regular expression) <input id="plan-topics" value=${form.topics} onInput=${set("topics")} placeholder=".*" /></label>` : null}
      <label>Topics that stay <input value=${form.pin} onInput=${set("pin")} placeholder="none" /></label>
      <label>Moves of a broker in a wave <input id="wave-moves" type="number" min="1" value=${form.wave} onInput=${set("wave")} placeholder="5%" /></label>
      <button class="primary" onClick=${preview} disabled=${busy} id="preview">${busy ? "Planning…" : "Preview"}</button>
    </div>
    <${Failure} error=${error} />
    ${plan ? html`<div class="stack" id="plan" style=${{ marginTop: "1rem" }}>
      <${Figures} items=${[
        ["replicas move", number(summary.replicas_moved)], ["at least", number(summary.lower_bound_replicas)],
        ["bytes to copy", summary.bytes_moved === null ? "unknown" : bytes(summary.bytes_moved)], ["at least", summary.lower_bound_bytes === null ? "unknown" : bytes(summary.lower_bound_bytes)],
        ["partitions change", number(summary.partitions_changed)], ["waves", number(plan.waves.length)],
      ]} />
      <p class="soft small">At least that much, because ${summary.lower_bound_reason}</p>
      ${summary.notes.map((note) => html`<p class="note">${note}</p>`)}
      <div class="wide"><table><thead><tr><th scope="col">broker</th><th class="num" scope="col">replicas</th><th class="num" scope="col">then</th><th class="num" scope="col">preferred leader of</th><th class="num" scope="col">then</th></tr></thead><tbody>
        ${Object.keys({ ...summary.balance.before.brokers, ...summary.balance.after.brokers }).map((id) => {
          const before = summary.balance.before.brokers[id] || { replicas: 0, leaders: 0 };
          const after = summary.balance.after.brokers[id] || { replicas: 0, leaders: 0 };
          return html`<tr><td>${id}</td><td class="num">${number(before.replicas)}</td><td class="num"><b>${number(after.replicas)}</b></td><td class="num">${number(before.leaders)}</td><td class="num"><b>${number(after.leaders)}</b></td></tr>`;
        })}</tbody></table></div>
      ${plan.moves.length ? html`<details><summary>${counted(summary.partitions_changed, "partition")} by wave</summary><${Rows} max="22rem" items=${plan.moves.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} columns=${[["wave", (each) => each.wave, "num"], ["partition", (each) => each.key, "name"], ["replicas then", (each) => each.replicas.join(", ")]]} /></details>` : html`<p class="note good">Nothing has to move.</p>`}
      ${plan.moves.length && cluster && cluster.allow_changes ? html`<div class="form">
        <label>Throttle in MB a second <input id="throttle" type="number" min="0.001" step="any" value=${form.throttle} onInput=${(event) => setForm({ ...form, throttle: event.target.value })} placeholder="none" /></label>
        <button class="primary" disabled=${running} onClick=${() => setConfirming(true)} id="run">Run it</button>${running ? html`<span class="soft small">Another plan is running.</span>` : null}</div>` : null}
    </div>` : null}
    ${confirming && plan ? html`<${Confirm} title="Run the plan" action="Run it" onClose=${() => setConfirming(false)} onConfirm=${async () => { await post("/api/moves", { plan: plan.id, throttle: rate }); setConfirming(false); setPlan(null); reload(); }}>
      <p>${counted(summary.partitions_changed, "partition")} in ${counted(plan.waves.length, "wave")}, ${summary.bytes_moved === null ? "an unknown number of bytes" : bytes(summary.bytes_moved)} to copy, ${rate ? `at most ${bytes(rate)} a second` : "as fast as it goes"}. The history says that you did it.</p><//>` : null}
    <${Cli} command="klamm snapshot --out snapshot" cluster=${cluster} />
    <${Cli} command=${`klamm plan --snapshot snapshot${flags} --out plan.json --json`} cluster=${null} />
  </section>`;
}

function Elections({ cluster }) {
  const { query } = useLocation();
  const [kind, setKind] = useState(query.get("elect") === "unclean" ? "unclean" : "preferred");
  const [effect, setEffect] = useState(null);
  const [error, setError] = useState(null);
  const [confirming, setConfirming] = useState(false);
  const look = (what) => {
    setKind(what);
    setQuery({ elect: what });
    post("/api/elections/preview", { kind: what }).then((found) => { setEffect(found); setError(null); }, setError);
  };
  useEffect(() => {
    if (query.get("elect")) look(kind);
  }, []);
  const lost = effect ? effect.losing : 0;
  // Names are sent as they were shown; of more than are shown, all.
  const names = () => (effect.count > effect.partitions.length ? null : effect.partitions.map(({ topic, partition }) => ({ topic, partition })));
  return html`<section class="card" aria-label="Elections"><h2>Elections</h2>
    <div class="row"><button onClick=${() => look("preferred")} id="preferred">What would preferred leaders change?</button><button onClick=${() => look("unclean")} id="unclean">What would unclean elections save?</button></div>
    <${Failure} error=${error} />
    ${effect ? html`<div id="effect" style=${{ marginTop: ".8rem" }}>
      ${effect.count ? html`<p>${counted(effect.count, "partition")} would get another leader${lost ? html`; <b>${number(lost)} of them would lose records</b>` : ""}.</p>
        <${Rows} max="20rem" items=${effect.partitions.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} columns=${[["partition", (each) => each.key, "name"], ["leader", (each) => (each.leader < 0 ? "none" : each.leader), "num"], ["then", (each) => html`<b>${each.new_leader}</b>`, "num"], ["", (each) => (each.loses_records ? html`<span class="tag bad">loses records</span>` : "")]]} />
        ${cluster && cluster.allow_changes ? html`<button class=${kind === "unclean" ? "danger" : "primary"} onClick=${() => setConfirming(true)} id="elect" style=${{ marginTop: ".6rem" }}>Elect</button>` : null}` : html`<p class="note good">Nothing: ${kind === "preferred" ? "every partition is led by its preferred replica, or that is not in sync" : "every partition has a leader, or no replica of it is alive"}.</p>`}
    </div>` : null}
    ${confirming && effect ? html`<${Confirm} title=${`Elect ${kind} leaders`} action="Elect" danger=${kind === "unclean"} onClose=${() => setConfirming(false)} onConfirm=${async () => { await post("/api/elections", { kind, partitions: names() }); setConfirming(false); setEffect(null); }}>
      <p>${counted(effect.count, "partition")} get another leader; clients follow by themselves.${lost ? " Records that only lost replicas have are given up." : ""}</p><//>` : null}
    <${Cli} command=${sh`klamm elect ${kind} --all --json`} cluster=${cluster} />
  </section>`;
}
