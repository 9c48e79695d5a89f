// Access: users who log in with SCRAM, ACLs, why something is denied, and quotas.
import { Cli, Confirm, Failure, html, Link, number, post, ReadOnly, Rows, setQuery, sh, Tabs, useApi, useLocation, useState } from "./base.js";

const OPERATIONS = ["Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite", "All"];
const RESOURCES = [["topic", "Topic"], ["group", "Group"], ["cluster", "Cluster"], ["transactional_id", "TransactionalId"]];
const QUOTAS = { user: ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"], ip: ["connection_creation_rate"] };
const OPTIONS = { topic: "--topic", group: "--group", transactional_id: "--transactional-id" };

export function Access({ cluster }) {
  const { path, query } = useLocation();
  const tab = path === "/acls" && query.get("show") === "explain" ? "explain" : path.slice(1);
  const View = { users: Users, acls: Acls, explain: Explain, quotas: Quotas }[tab] || Users;
  return html`<div>
    <div class="head"><h1>Access</h1></div>
    <${Tabs} label="Access" chosen=${tab} items=${[["users", "users", "/users"], ["acls", "ACLs", "/acls"], ["explain", "why denied?", "/acls?show=explain"], ["quotas", "quotas", "/quotas"]]} />
    <${View} key=${tab} cluster=${cluster} />
    <${ReadOnly} cluster=${cluster} />
  </div>`;
}

// Users

function Users({ cluster }) {
  const { data, error, reload } = useApi("/api/users", { every: 5000 });
  const { data: security } = useApi("/api/security");
  const [adding, setAdding] = useState(null);
  const [removing, setRemoving] = useState(null);
  const changes = cluster && cluster.allow_changes;
  const hasScram = security && security.mechanisms.some((each) => each.startsWith("SCRAM"));
  return html`<div>
    ${security && !hasScram ? html`<p class="note" id="no-scram">No broker of this cluster asks for SCRAM (<code>sasl.enabled.mechanisms</code> is ${security.mechanisms.join(", ") || "not set"}), so that nobody logs in with these users.</p>` : null}
    <${Failure} error=${error} />
    <section class="card stack" aria-label="Users">
      ${changes ? html`<div class="row"><button class="primary" id="add-user" onClick=${() => setAdding({ user: "", password: "", again: "", mechanism: "SCRAM-SHA-512" })}>Add a user</button></div>` : null}
      <${Rows} items=${(data || []).map((each) => ({ ...each, key: `${each.user} ${each.mechanism}` }))} empty=${data ? "There are no users." : "Reading…"} columns=${[
        ["user", (each) => html`<span data-user=${each.user}>${each.user}</span>`, "name"],
        ["mechanism", (each) => each.mechanism],
        ["iterations", (each) => number(each.iterations), "num"],
        ["", (each) => html`<div class="row"><${Link} to=${`/acls?principal=${encodeURIComponent(`User:${each.user}`)}`}>ACLs<//>
          ${changes ? html`<button class="small-button" onClick=${() => setAdding({ user: each.user, password: "", again: "", mechanism: each.mechanism, known: true })}>new password</button><button class="danger small-button" data-remove-user=${each.user} onClick=${() => setRemoving(each)}>remove</button>` : null}</div>`],
      ]} />
    </section>
    ${adding ? html`<${AddUser} form=${adding} setForm=${setAdding} onClose=${() => { setAdding(null); reload(); }} />` : null}
    ${removing ? html`<${Confirm} title=${`Remove ${removing.user}`} action="Remove" danger onClose=${() => { setRemoving(null); reload(); }} onConfirm=${() => post("/api/users/remove", { user: removing.user, mechanism: removing.mechanism })}>
      <p>${removing.user} can no longer log in with ${removing.mechanism}. Connections that exist go on until they end or have to log in again. ACLs that name the user stay.</p><//>` : null}
    <${Cli} command="klamm users list --json" cluster=${cluster} />
  </div>`;
}

function AddUser({ form, setForm, onClose }) {
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const add = async () => {
    if (form.password !== form.again) throw new Error("The passwords differ.");
    await post("/api/users/add", { user: form.user, password: form.password, mechanism: form.mechanism });
  };
  return html`<${Confirm} title=${form.known ? `A new password for ${form.user}` : "Add a user"} action=${form.known ? "Change" : "Add"} onConfirm=${add} onClose=${onClose}>
    <p>The password is salted and hashed here; the brokers store the hash, and no page shows it again. ${form.known ? "Whoever logs in from now on needs the new one." : "A user may do nothing until an ACL allows it, if the cluster has an authorizer."}</p>
    <div class="form">
      <label>Name <input id="user-name" value=${form.user} onInput=${set("user")} disabled=${form.known} autocomplete="off" /></label>
      <label>Mechanism <select id="user-mechanism" value=${form.mechanism} onChange=${set("mechanism")} disabled=${form.known}><option>SCRAM-SHA-512</option><option>SCRAM-SHA-256</option></select></label>
      <label>Password <input id="user-password" type="password" value=${form.password} onInput=${set("password")} autocomplete="new-password" /></label>
      <label>Once more <input id="user-again" type="password" value=${form.again} onInput=${set("again")} autocomplete="new-password" /></label>
    </div><//>`;
}

// ACLs

function NoAuthorizer() {
  return html`<p class="note" id="no-authorizer">This cluster has no authorizer: everybody who reaches it may do everything, and there are no ACLs. <code>authorizer.class.name=kafka.security.authorizer.AclAuthorizer</code> on the brokers gives it one.</p>`;
}

// Which resource a form or a link names, for the API and for the command line.
function resourceOf(kind, name) {
  if (!kind || (kind !== "cluster" && !name)) return { query: {}, options: "" };
  return kind === "cluster" ? { query: { cluster: "1" }, options: " --cluster" } : { query: { [kind]: name }, options: ` ${OPTIONS[kind]}${sh` ${name}`}` };
}

function ResourceFields({ kind, name, onKind, onName, any = null }) {
  return html`<label>Resource <select id="resource-kind" value=${kind} onChange=${(event) => onKind(event.target.value)}>${any ? html`<option value="">${any}</option>` : null}${RESOURCES.map(([each, word]) => html`<option value=${each}>${word}</option>`)}</select></label>
    ${kind && kind !== "cluster" ? html`<label>Name <input id="resource-name" value=${name} onInput=${(event) => onName(event.target.value)} placeholder="orders" /></label>` : null}`;
}

function Acls({ cluster }) {
  const { query } = useLocation();
  const { data: security, error: unknown } = useApi("/api/security");
  const kind = query.get("kind") || "";
  const name = query.get("name") || "";
  const principal = query.get("principal") || "";
  const resource = resourceOf(kind, name);
  const wanted = new URLSearchParams({ ...resource.query, ...(principal ? { principal } : {}) }).toString();
  const { data, error, reload } = useApi(security && security.authorizer ? `/api/acls${wanted ? `?${wanted}` : ""}` : null, { every: 5000 });
  const [adding, setAdding] = useState(null);
  const [removing, setRemoving] = useState(null);
  const changes = cluster && cluster.allow_changes;
  const command = `klamm acls list${principal ? sh` --principal ${principal}` : ""}${resource.options} --json`;
  if (security && !security.authorizer) return html`<div><${NoAuthorizer} /><${Cli} command=${command} cluster=${cluster} /></div>`;
  return html`<div>
    <${Failure} error=${error || unknown} />
    <section class="card stack" aria-label="ACLs">
      <div class="form">
        <label>Principal <input id="acl-principal" value=${principal} placeholder="User:alice" onInput=${(event) => setQuery({ principal: event.target.value })} /></label>
        <${ResourceFields} kind=${kind} name=${name} any="any" onKind=${(value) => setQuery({ kind: value, name: null })} onName=${(value) => setQuery({ name: value })} />
        ${changes ? html`<button class="primary" id="add-acl" onClick=${() => setAdding({ resource_type: "Topic", name: name || "", pattern: "Literal", principal: principal || "User:", permission: "Allow", operation: "Read", host: "*" })}>Add an ACL</button>` : null}
      </div>
      <${Rows} items=${(data || []).map((each) => ({ ...each, key: JSON.stringify(each) }))} empty=${data ? "There are none like that." : "Reading…"} columns=${[
        ["who", (each) => each.principal, "name"],
        ["", (each) => html`<span class="tag ${each.permission === "Deny" ? "bad" : "good"}">${each.permission}</span>`],
        ["what", (each) => each.operation],
        ["on", (each) => html`${each.resource_type} ${each.resource_type === "Cluster" ? "" : html`<b>${each.name}</b>`}${each.pattern === "Prefixed" ? "…" : ""}`, "name"],
        ["from", (each) => (each.host === "*" ? "anywhere" : each.host)],
        ["", (each) => (changes ? html`<button class="danger small-button" data-remove-acl=${each.principal} onClick=${() => setRemoving(each)}>remove</button>` : null)],
      ]} />
    </section>
    ${adding ? html`<${AddAcl} form=${adding} setForm=${setAdding} onClose=${() => { setAdding(null); reload(); }} />` : null}
    ${removing ? html`<${Confirm} title="Remove an ACL" action="Remove" danger onClose=${() => { setRemoving(null); reload(); }} onConfirm=${() => post("/api/acls/remove", (({ key, ...rest }) => rest)(removing))}>
      <p>No longer: <b>${sentence(removing)}</b>. ${removing.permission === "Allow" ? "If nothing else allows it, it is denied from then on." : "Whatever else allows it counts from then on."}</p><//>` : null}
    <${Cli} command=${command} cluster=${cluster} />
  </div>`;
}

const sentence = (acl) => `${acl.permission} ${acl.operation} for ${acl.principal} from ${acl.host === "*" ? "any host" : acl.host} on ${acl.resource_type} ${acl.resource_type === "Cluster" ? "" : acl.name}${acl.pattern === "Prefixed" ? " and whatever begins like that" : ""}`;

function AddAcl({ form, setForm, onClose }) {
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const isCluster = form.resource_type === "Cluster";
  return html`<${Confirm} title="Add an ACL" action="Add" onConfirm=${() => post("/api/acls/add", form)} onClose=${onClose}>
    <div class="form">
      <label>Who <input id="new-acl-principal" value=${form.principal} onInput=${set("principal")} placeholder="User:alice, User:* for anybody" /></label>
      <label>May or not <select id="new-acl-permission" value=${form.permission} onChange=${set("permission")}><option>Allow</option><option>Deny</option></select></label>
      <label>What <select id="new-acl-operation" value=${form.operation} onChange=${set("operation")}>${OPERATIONS.map((each) => html`<option>${each}</option>`)}</select></label>
      <label>On <select id="new-acl-type" value=${form.resource_type} onChange=${set("resource_type")}>${RESOURCES.map(([, word]) => html`<option>${word}</option>`)}</select></label>
      ${isCluster ? null : html`<label>Name <input id="new-acl-name" value=${form.name} onInput=${set("name")} placeholder="orders, * for all" /></label>
      <label>Names <select id="new-acl-pattern" value=${form.pattern} onChange=${set("pattern")}><option value="Literal">exactly so</option><option value="Prefixed">beginning like that</option></select></label>`}
      <label>From <input id="new-acl-host" value=${form.host} onInput=${set("host")} placeholder="* for anywhere" /></label>
    </div>
    <p>From then on: <b>${sentence(form)}</b>. ${form.permission === "Deny" ? "A denial comes before whatever allows it." : "A denial that covers it still comes first."}</p><//>`;
}

// Why was this denied?

function Explain({ cluster }) {
  const { query } = useLocation();
  const { data: security, error: unknown } = useApi("/api/security");
  const [form, setForm] = useState({ principal: query.get("principal") || "User:", operation: query.get("operation") || "Read", kind: query.get("kind") || "topic", name: query.get("name") || "", host: query.get("host") || "127.0.0.1" });
  const asked = { principal: query.get("principal") || "", operation: query.get("operation") || "Read", host: query.get("host") || "127.0.0.1" };
  const resource = resourceOf(query.get("kind") || "topic", query.get("name") || "");
  const isAsked = asked.principal && resource.options;
  const { data, error } = useApi(security && security.authorizer && isAsked ? `/api/acls/explain?${new URLSearchParams({ ...asked, ...resource.query })}` : null);
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const ask = () => setQuery({ principal: form.principal, operation: form.operation, kind: form.kind, name: form.kind === "cluster" ? null : form.name, host: form.host });
  const shown = isAsked ? asked : form;
  const options = isAsked ? resource.options : resourceOf(form.kind, form.name || "orders").options;
  const command = `${sh`klamm acls explain --principal ${shown.principal} --operation ${shown.operation} --host ${shown.host}`}${options} --json`;
  if (security && !security.authorizer) return html`<div><${NoAuthorizer} /><${Denials} /><${Cli} command=${command} cluster=${cluster} /></div>`;
  return html`<div class="stack">
    <${Failure} error=${error || unknown} />
    <section class="card stack" aria-label="Question">
      <div class="form">
        <label>Who <input id="explain-principal" value=${form.principal} onInput=${set("principal")} placeholder="User:alice" /></label>
        <label>What <select id="explain-operation" value=${form.operation} onChange=${set("operation")}>${OPERATIONS.map((each) => html`<option>${each}</option>`)}</select></label>
        <${ResourceFields} kind=${form.kind} name=${form.name} onKind=${(kind) => setForm({ ...form, kind })} onName=${(name) => setForm({ ...form, name })} />
        <label>From <input id="explain-host" value=${form.host} onInput=${set("host")} /></label>
        <button class="primary" id="explain" onClick=${ask}>Why?</button>
      </div>
      <p class="soft small">Decided by the authorizer's own rules from the ACLs as they are now. The brokers' <code>super.users</code> may do everything and are not visible from outside.</p>
    </section>
    ${data && isAsked ? html`<section class="card" aria-label="Verdict" id="verdict" data-allowed=${String(data.allowed)}>
      <p class="note ${data.allowed ? "good" : "bad"}"><b>${data.allowed ? "Allowed" : "Denied"}</b>: ${data.reason}.</p>
      ${data.considered.length ? html`<h2>ACLs that cover it</h2><ul class="story">${data.considered.map((each) => html`<li>${each} ${data.deciding.includes(each) ? html`<span class="tag accent">decides</span>` : null}</li>`)}</ul>` : null}
    </section>` : null}
    <${Denials} />
    <${Cli} command=${command} cluster=${cluster} />
  </div>`;
}

// What brokers have refused, as far as their metrics say.
function Denials() {
  const { data, error } = useApi("/api/denials", { every: 10000 });
  if (error) return html`<${Failure} error=${error} />`;
  if (!data) return null;
  return html`<section class="card" aria-label="Refused so far"><h2>Refused so far</h2>
    ${data.brokers.length ? html`<${Rows} max="20rem" items=${data.denials.map((each) => ({ ...each, key: `${each.broker} ${each.request} ${each.error}` }))} empty="Nothing was refused since the brokers were started." columns=${[
      ["broker", (each) => each.broker, "num"], ["request", (each) => each.request], ["error", (each) => each.error], ["times", (each) => number(each.count), "num"],
    ]} />` : null}
    ${data.without.length ? html`<p class="soft small">${data.without.length === 1 ? "Broker" : "Brokers"} ${data.without.join(", ")} ${data.without.length === 1 ? "offers" : "offer"} no metrics to the console (<code>klamm.metrics.port</code>); Apache Kafka writes what it denies into its <code>kafka-authorizer.log</code>.</p>` : null}
  </section>`;
}

// Quotas

const whose = (each) => [["user", each.user], ["client", each.client], ["address", each.ip]].filter(([, name]) => name !== null).map(([kind, name]) => `${kind} ${name === "<default>" ? "(all others)" : name}`).join(", ");

function Quotas({ cluster }) {
  const { data, error, reload } = useApi("/api/quotas", { every: 5000 });
  const [setting, setSetting] = useState(null);
  const [removing, setRemoving] = useState(null);
  const changes = cluster && cluster.allow_changes;
  const rows = (data || []).flatMap((each) => Object.entries(each.quotas).map(([name, value]) => ({ ...each, name, value, key: JSON.stringify([each.user, each.client, each.ip, name]) })));
  return html`<div>
    <${Failure} error=${error} />
    <section class="card stack" aria-label="Quotas">
      ${changes ? html`<div class="row"><button class="primary" id="set-quota" onClick=${() => setSetting({ user: "", client: "", ip: "", name: "producer_byte_rate", value: "" })}>Set a quota</button></div>` : null}
      <${Rows} items=${rows} empty=${data ? "There are no quotas." : "Reading…"} columns=${[
        ["of", (each) => html`<span data-quota=${each.key}>${whose(each)}</span>`, "name"], ["quota", (each) => each.name], ["value", (each) => number(each.value), "num"],
        ["", (each) => (changes ? html`<div class="row"><button class="small-button" onClick=${() => setSetting({ user: each.user || "", client: each.client || "", ip: each.ip || "", name: each.name, value: String(each.value) })}>change</button><button class="danger small-button" data-remove-quota=${each.name} onClick=${() => setRemoving(each)}>remove</button></div>` : null)],
      ]} />
    </section>
    ${setting ? html`<${SetQuota} form=${setting} setForm=${setSetting} onClose=${() => { setSetting(null); reload(); }} />` : null}
    ${removing ? html`<${Confirm} title="Remove a quota" action="Remove" danger onClose=${() => { setRemoving(null); reload(); }} onConfirm=${() => post("/api/quotas/remove", { user: removing.user, client: removing.client, ip: removing.ip, keys: [removing.name] })}>
      <p>${removing.name} of ${whose(removing)} is no longer ${number(removing.value)}: the next wider quota holds, or none.</p><//>` : null}
    <${Cli} command="klamm quotas list --json" cluster=${cluster} />
  </div>`;
}

function SetQuota({ form, setForm, onClose }) {
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const known = form.ip ? QUOTAS.ip : QUOTAS.user;
  const name = known.includes(form.name) ? form.name : known[0];
  const body = () => ({ user: form.user || null, client: form.client || null, ip: form.ip || null, quotas: { [name]: form.value === "" ? null : Number(form.value) } });
  return html`<${Confirm} title="Set a quota" action="Set" onConfirm=${() => post("/api/quotas/set", body())} onClose=${onClose}>
    <div class="form">
      <label>User <input id="quota-user" value=${form.user} onInput=${set("user")} placeholder="alice, or <default>" /></label>
      <label>Client id <input id="quota-client" value=${form.client} onInput=${set("client")} placeholder="any" /></label>
      <label>Address <input id="quota-ip" value=${form.ip} onInput=${set("ip")} placeholder="only alone" /></label>
      <label>Quota <select id="quota-name" value=${name} onChange=${set("name")}>${known.map((each) => html`<option>${each}</option>`)}</select></label>
      <label>Value <input id="quota-value" type="number" min="0" step="any" value=${form.value} onInput=${set("value")} /></label>
    </div>
    <p>Each broker holds back whoever exceeds it, from then on, for connections that exist as well. Rates are bytes in a second on one broker; <code>request_percentage</code> is the share of a thread's time.</p><//>`;
}
