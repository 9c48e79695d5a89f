// Groups: who reads, how far behind, for how long, and where a group shall go on.
import { Cli, Confirm, counted, Failure, Figures, html, Link, number, post, ReadOnly, Rows, seconds, sh, useApi, useLocation, useState } from "./base.js";
import { Chart } from "./chart.js";

export function Groups({ cluster }) {
  const { path } = useLocation();
  const name = path.startsWith("/groups/") ? decodeURIComponent(path.slice(8)) : null;
  return name === null ? html`<${GroupList} cluster=${cluster} />` : html`<${Group} key=${name} name=${name} cluster=${cluster} />`;
}

const left = (lag, value) => (lag === 0 ? "none" : value !== null ? seconds(value) : "not shrinking");

function GroupList({ cluster }) {
  const { data, error } = useApi("/api/groups", { every: 3000 });
  const { data: lags } = useApi("/api/lag", { every: 5000 });
  const known = (each) => lags && lags.groups[each.group];
  return html`<div>
    <div class="head"><h1>Groups</h1></div>
    <${Failure} error=${error} />
    <section class="card" aria-label="Groups"><${Rows} items=${(data || []).map((each) => ({ ...each, key: each.group }))} empty=${data ? "There are no groups." : "Reading…"} columns=${[
      ["group", (each) => html`<${Link} to=${`/groups/${encodeURIComponent(each.group)}`}>${each.group || "(empty name)"}<//>`, "name"],
      ["state", (each) => html`<span class="tag ${each.state === "Stable" ? "good" : ""}">${each.state || "unknown"}</span>`],
      ["behind", (each) => (known(each) ? number(known(each).lag) : "–"), "num"],
      ["time left", (each) => (known(each) ? left(known(each).lag, known(each).seconds_left) : "–")],
      ["protocol", (each) => each.protocol_type],
      ["coordinator", (each) => each.coordinator, "num"],
    ]} /></section>
    ${lags && lags.left_out ? html`<p class="soft small">The lag of ${counted(lags.left_out, "group")} is not sampled, since there are so many; opening a group has it sampled.</p>` : null}
    <${Cli} command="klamm groups list --json" cluster=${cluster} />
  </div>`;
}

function Group({ name, cluster }) {
  const { data, error, reload } = useApi(`/api/groups/${encodeURIComponent(name)}`, { every: 3000 });
  const { data: lag } = useApi(`/api/lag/${encodeURIComponent(name)}`, { every: 5000 });
  const [action, setAction] = useState(null);
  const total = data ? data.positions.reduce((sum, each) => sum + Math.max(0, each.lag), 0) : null;
  const changes = cluster && cluster.allow_changes && data;
  return html`<div>
    <div class="head"><h1><${Link} to="/groups">Groups<//> / ${name}</h1><span class="grow"></span>
      ${changes ? html`<button onClick=${() => setAction("reset")} id="reset">Reset offsets</button><button class="danger" onClick=${() => setAction("delete")}>Delete</button>` : null}</div>
    <${Failure} error=${error} />
    ${data ? html`<div class="stack">
      <${Figures} items=${[["state", data.state], ["members", number(data.members.length)], ["records behind", number(total)], ["time left at this pace", lag && lag.at.length > 1 ? left(total, lag.seconds_left) : "…"]]} />
      <section class="card" aria-label="Lag over time"><h2>Lag over time</h2>${lag && lag.at.length > 1 ? html`<${Chart} at=${lag.at} lines=${[["records behind", lag.lag, number]]} />` : html`<p class="soft">Samples are taken every five seconds from the console's start; the line begins with the second.</p>`}</section>
      <section class="card" aria-label="Positions"><h2>Positions</h2><${Rows} items=${data.positions.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} empty="It has committed nothing." columns=${[
        ["partition", (each) => html`<${Link} to=${`/topics/${encodeURIComponent(each.topic)}`}>${each.topic}<//>-${each.partition}`, "name"],
        ["offset", (each) => (each.offset < 0 ? "–" : number(each.offset)), "num"],
        ["end", (each) => (each.end < 0 ? "–" : number(each.end)), "num"],
        ["behind", (each) => (each.lag < 0 ? "–" : number(each.lag)), "num"],
        ["member", (each) => each.member_id || "–", "name"],
      ]} /></section>
      <section class="card" aria-label="Members"><h2>Members</h2><${Rows} items=${data.members.map((each) => ({ ...each, key: each.member_id }))} empty="Nobody." columns=${[
        ["member", (each) => each.member_id, "name"], ["client", (each) => each.client_id], ["host", (each) => each.host],
        ["reads", (each) => each.assignment.map(([topic, partition]) => `${topic}-${partition}`).join(", "), "name"],
      ]} /></section>
    </div>` : null}
    ${action === "reset" ? html`<${Reset} name=${name} onClose=${() => { setAction(null); reload(); }} />` : null}
    ${action === "delete" ? html`<${Confirm} title=${`Delete group ${name}`} action="Delete it" danger onClose=${() => { setAction(null); reload(); }} onConfirm=${() => post("/api/groups/delete", { group: name })}>
      <p>Its committed offsets are gone for good: whoever joins it again begins anew. A group with members is refused.</p><//>` : null}
    <${ReadOnly} cluster=${cluster} />
    <${Cli} command=${sh`klamm groups describe ${name} --json`} cluster=${cluster} />
  </div>`;
}

function Reset({ name, onClose }) {
  const [to, setTo] = useState("earliest");
  const [value, setValue] = useState("");
  const [topic, setTopic] = useState("");
  const [preview, setPreview] = useState(null);
  const [error, setError] = useState(null);
  const body = () => ({ group: name, topics: topic ? [topic] : [], to: to === "offset" ? { offset: Number(value) } : to === "shift" ? { shift: Number(value) } : to === "time" ? { time_ms: new Date(value).getTime() } : to });
  const look = () => post("/api/groups/reset/preview", body()).then((found) => { setPreview(found); setError(null); }, setError);
  return html`<${Confirm} title=${`Reset offsets of ${name}`} action="Reset" onClose=${onClose} onConfirm=${async () => { if (!preview) throw new Error("Look at the dry run first."); await post("/api/groups/reset", body()); }}>
    <div class="form">
      <label>To <select value=${to} onChange=${(event) => { setTo(event.target.value); setPreview(null); }}>${["earliest", "latest", "current", "offset", "shift", "time"].map((each) => html`<option>${each}</option>`)}</select></label>
      ${["offset", "shift", "time"].includes(to) ? html`<label>${to} <input value=${value} onInput=${(event) => { setValue(event.target.value); setPreview(null); }} type=${to === "time" ? "datetime-local" : "number"} /></label>` : null}
      <label>Topic (all that it has committed) <input value=${topic} onInput=${(event) => { setTopic(event.target.value); setPreview(null); }} placeholder="orders or orders:0,2" /></label>
      <button onClick=${look} id="dry-run">Dry run</button>
    </div>
    <${Failure} error=${error} />
    ${preview ? html`<${Rows} max="16rem" items=${preview.map((each) => ({ ...each, key: `${each.topic}-${each.partition}` }))} columns=${[["partition", (each) => each.key, "name"], ["now", (each) => (each.offset < 0 ? "–" : number(each.offset)), "num"], ["then", (each) => html`<b>${number(each.new_offset)}</b>`, "num"]]} />` : null}
  <//>`;
}
