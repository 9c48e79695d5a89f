// Topics: the list, and one topic with its partitions, settings and deletion.
import { Cli, Confirm, counted, Failure, html, Link, number, post, ReadOnly, Rows, setQuery, sh, go, useApi, useLocation, useState } from "./base.js";
import { Records } from "./records.js";
import { Story, useStory } from "./story.js";

export function Topics({ cluster }) {
  const { path } = useLocation();
  const name = path.startsWith("/topics/") ? decodeURIComponent(path.slice(8)) : null;
  return name === null ? html`<${TopicList} cluster=${cluster} />` : html`<${Topic} key=${name} name=${name} cluster=${cluster} />`;
}

function TopicList({ cluster }) {
  const { query } = useLocation();
  const { data, error, reload } = useApi("/api/topics", { every: 3000 });
  const [creating, setCreating] = useState(false);
  const wanted = (query.get("find") || "").toLowerCase();
  const inner = query.get("internal") === "1";
  const shown = (data || []).filter((topic) => topic.topic.toLowerCase().includes(wanted) && (inner || !topic.topic.startsWith("__"))).map((topic) => ({ ...topic, key: topic.topic }));
  return html`<div>
    <div class="head"><h1>Topics</h1><span class="grow"></span>
      <label class="inline"><span class="hidden">Find topics</span><input type="search" placeholder="Find topics" value=${query.get("find") || ""} onInput=${(event) => setQuery({ find: event.target.value })} /></label>
      <label class="inline"><input type="checkbox" checked=${inner} onChange=${(event) => setQuery({ internal: event.target.checked ? "1" : null })} /> internal</label>
      ${cluster && cluster.allow_changes ? html`<button class="primary" onClick=${() => setCreating(true)} id="create">Create a topic</button>` : null}
    </div>
    <${Failure} error=${error} />
    <section class="card" aria-label="Topics">
      <${Rows} items=${shown} empty=${data ? "There are none like that." : "Reading…"} columns=${[
        ["topic", (topic) => html`<${Link} to=${`/topics/${encodeURIComponent(topic.topic)}`} data-topic=${topic.topic}>${topic.topic}<//>`, "name"],
        ["partitions", (topic) => number(topic.partitions), "num"],
        ["replicas", (topic) => number(topic.replication_factor), "num"],
        ["under-replicated", (topic) => (topic.under_replicated ? html`<span class="tag warn">${number(topic.under_replicated)}</span>` : "0"), "num"],
        ["without leader", (topic) => (topic.unavailable ? html`<span class="tag bad">${number(topic.unavailable)}</span>` : "0"), "num"],
      ]} />
    </section>
    ${creating ? html`<${CreateTopic} onClose=${() => { setCreating(false); reload(); }} />` : null}
    <${ReadOnly} cluster=${cluster} />
    <${Cli} command="klamm topics list --json" cluster=${cluster} />
  </div>`;
}

function CreateTopic({ onClose }) {
  const [form, setForm] = useState({ topic: "", partitions: "3", factor: "", configs: "" });
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const configs = () => Object.fromEntries(form.configs.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf("=");
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1)];
  }));
  const create = async () => {
    const body = { topic: form.topic, configs: configs() };
    if (form.partitions) body.partitions = Number(form.partitions);
    if (form.factor) body.replication_factor = Number(form.factor);
    await post("/api/topics/create", body);
  };
  return html`<${Confirm} title="Create a topic" action="Create" onConfirm=${create} onClose=${onClose}>
    <p>Replicas are spread over brokers and racks; clients can use the topic at once.</p>
    <div class="form">
      <label>Name <input id="new-topic" value=${form.topic} onInput=${set("topic")} autofocus /></label>
      <label>Partitions <input id="new-partitions" type="number" min="1" value=${form.partitions} onInput=${set("partitions")} /></label>
      <label>Replicas <input id="new-factor" type="number" min="1" placeholder="default" value=${form.factor} onInput=${set("factor")} /></label>
    </div>
    <label>Settings, one key=value in a line <textarea rows="3" value=${form.configs} onInput=${set("configs")} placeholder="min.insync.replicas=2"></textarea></label>
  <//>`;
}

// The command that prints these records; a filter is the console's own.
function consuming(name, query) {
  const from = query.get("from") || "-50";
  const partition = query.get("partition");
  return `${sh`klamm consume ${name} --offset=${/^\d{4}-/.test(from) ? `@${from}` : from}`}${partition ? sh` --partition ${partition}` : ""} --exit --json`;
}

function Topic({ name, cluster }) {
  const { query } = useLocation();
  const tab = query.get("show") || "partitions";
  const address = `/api/topics/${encodeURIComponent(name)}`;
  const { data, error } = useApi(address, { every: 2000 });
  const [story, setStory] = useStory();
  const [action, setAction] = useState(null);
  const topic = data && data[0];
  const changes = cluster && cluster.allow_changes;
  return html`<div>
    <div class="head"><h1><${Link} to="/topics">Topics<//> / ${name}</h1><span class="grow"></span>
      ${changes && topic ? html`<button onClick=${() => setAction("expand")}>Add partitions</button><button class="danger" onClick=${() => setAction("delete")} id="delete">Delete</button>` : null}
    </div>
    <${Failure} error=${error} />
    ${topic ? html`<div>
      <p class="soft small">${counted(topic.partitions.length, "partition")}, id <code>${topic.topic_id || "none"}</code>${Object.entries(topic.configs).map(([key, value]) => html` · <code>${key}=${value}</code>`)}</p>
      <div class="row" role="tablist" style=${{ marginBottom: "1rem" }}>${["partitions", "records", "settings"].map((each) => html`<button role="tab" id=${`tab-${each}`} aria-selected=${String(tab === each)} aria-pressed=${undefined} class=${tab === each ? "primary" : ""} onClick=${() => setQuery({ show: each })}>${each}</button>`)}</div>
      ${tab === "partitions" ? html`<section class="card" aria-label="Partitions"><${Rows} items=${topic.partitions.map((each) => ({ ...each, key: each.partition }))} columns=${[
        ["partition", (each) => html`<button class="plain" onClick=${() => setStory(`${name}-${each.partition}`)} aria-label=${`The story of ${name}-${each.partition}`}>${each.partition}</button>`],
        ["leader", (each) => (each.leader < 0 ? html`<span class="tag bad">none</span>` : each.leader), "num"],
        ["epoch", (each) => each.leader_epoch, "num"],
        ["replicas", (each) => each.replicas.join(", ")],
        ["in sync", (each) => html`<span class=${each.isr.length < each.replicas.length ? "tag warn" : ""}>${each.isr.join(", ")}</span>`],
        ["offline", (each) => each.offline.join(", ")],
      ]} /></section>` : null}
      ${tab === "records" ? html`<${Records} topic=${topic} cluster=${cluster} />` : null}
      ${tab === "settings" ? html`<${Settings} address=${`${address}/settings`} resource=${{ topic: name }} cluster=${cluster} />` : null}
    </div>` : null}
    ${action === "delete" ? html`<${Confirm} title=${`Delete ${name}`} action="Delete it" danger onClose=${() => setAction(null)} onConfirm=${async () => { await post("/api/topics/delete", { topic: name }); go("/topics"); }}>
      <p>The topic and all records in ${counted(topic.partitions.length, "partition")} are gone for good.</p><//>` : null}
    ${action === "expand" ? html`<${Expand} name=${name} now=${topic.partitions.length} onClose=${() => setAction(null)} />` : null}
    ${story ? html`<${Story} key=${story} name=${story} cluster=${cluster} onClose=${() => setStory(null)} />` : null}
    <${Cli} command=${tab === "records" ? consuming(name, query) : tab === "settings" ? sh`klamm configs describe --topic ${name} --json` : sh`klamm topics describe ${name} --json`} cluster=${cluster} />
  </div>`;
}

function Expand({ name, now, onClose }) {
  const [total, setTotal] = useState(String(now + 1));
  return html`<${Confirm} title=${`Add partitions to ${name}`} action="Add" onClose=${onClose} onConfirm=${() => post("/api/topics/partitions", { topic: name, partitions: Number(total) })}>
    <p>Keys go to other partitions from then on; a topic never gets fewer again.</p>
    <label>Partitions in all <input type="number" min=${now + 1} value=${total} onInput=${(event) => setTotal(event.target.value)} /></label><//>`;
}

// The settings of a topic or a broker, with where each comes from.
export function Settings({ address, resource, cluster }) {
  const { data, error, reload } = useApi(address);
  const [find, setFind] = useState("");
  const [editing, setEditing] = useState(null);
  const [all, setAll] = useState(false);
  const changes = cluster && cluster.allow_changes;
  const shown = (data || []).filter((each) => each.name.includes(find) && (all || find || each.source !== "default")).map((each) => ({ ...each, key: each.name }));
  return html`<section class="card" aria-label="Settings">
    <div class="row" style=${{ marginBottom: ".6rem" }}><input type="search" aria-label="Find settings" placeholder="Find settings" value=${find} onInput=${(event) => setFind(event.target.value)} />
      <label class="inline"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> defaults, too</label></div>
    <${Failure} error=${error} />
    <${Rows} items=${shown} empty=${data ? "Everything is as by default." : "Reading…"} columns=${[
      ["setting", (each) => each.name, "name"],
      ["value", (each) => (each.sensitive ? html`<span class="tag">not shown</span>` : html`<code>${each.value}</code>`), "name"],
      ["from", (each) => each.source],
      ["", (each) => (changes && !each.read_only && !each.sensitive ? html`<button class="small-button" onClick=${() => setEditing({ ...each, next: each.value || "" })}>change</button>` : null)],
    ]} />
    ${editing ? html`<${Confirm} title=${`Change ${editing.name}`} action="Change" onClose=${() => { setEditing(null); reload(); }} onConfirm=${() => post("/api/settings", { ...resource, ...(editing.remove ? { remove: [editing.name] } : { set: { [editing.name]: editing.next } }) })}>
      <p>Now <code>${editing.value}</code> (${editing.source}). It takes effect at once.</p>
      <label>New value <input id="new-value" value=${editing.next} disabled=${editing.remove} onInput=${(event) => setEditing({ ...editing, next: event.target.value })} /></label>
      ${editing.source === "topic" || editing.source === "broker, dynamic" ? html`<p><label class="inline"><input type="checkbox" checked=${editing.remove} onChange=${(event) => setEditing({ ...editing, remove: event.target.checked })} /> remove it, back to what it falls back to</label></p>` : null}<//>` : null}
  </section>`;
}
