// The records of a topic: by offset or time, live, filtered over a bounded scan, exported, produced.
import { Confirm, Failure, html, moment, number, post, setQuery, useEffect, useLocation, useRef, useState } from "./base.js";

const KEPT = 1000;

export function Records({ topic, cluster }) {
  const { query } = useLocation();
  const [form, setForm] = useState({ partition: query.get("partition") || "", from: query.get("from") || "-50", filter: query.get("filter") || "", limit: query.get("limit") || "200" });
  const [state, setState] = useState({ records: [], scanned: 0, total: 0, found: 0, running: false, error: null });
  const [producing, setProducing] = useState(false);
  const source = useRef(null);
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const address = `/api/topics/${encodeURIComponent(topic.topic)}`;
  const parameters = (more = {}) => {
    const from = /^\d{4}-/.test(form.from) ? `@${new Date(form.from).getTime()}` : form.from;
    const values = { ...form, from, ...more };
    return new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "")).toString();
  };
  const stop = () => {
    if (source.current) source.current.close();
    source.current = null;
    setState((last) => ({ ...last, running: false }));
  };
  const start = async (tail) => {
    stop();
    setQuery({ partition: form.partition, from: form.from, filter: form.filter, limit: form.limit === "200" ? null : form.limit });
    setState({ records: [], scanned: 0, total: 0, found: 0, running: true, tail, error: null });
    // A refused question has its reason in the body, which a stream does not give.
    const url = `${address}/records?${parameters(tail ? { tail: "1" } : {})}`;
    const stream = new EventSource(url);
    source.current = stream;
    stream.onmessage = (message) => {
      const told = JSON.parse(message.data);
      setState((last) => ({
        ...last,
        ...(told.error ? { error: new Error(told.error) } : { scanned: told.scanned, total: told.total, found: told.found }),
        records: told.records ? [...last.records, ...told.records].slice(-KEPT) : last.records,
        running: !told.end,
      }));
      if (told.end) stop();
    };
    stream.onerror = async () => {
      stop();
      const answer = await fetch(url, { headers: { accept: "application/json" } }).then((response) => (response.ok ? null : response.json()), () => null);
      if (answer) setState((last) => ({ ...last, error: new Error(answer.message), running: false }));
    };
  };
  useEffect(() => {
    start(false);
    return () => source.current && source.current.close();
  }, []);
  const newest = [...state.records].reverse();
  return html`<section class="card stack" aria-label="Records">
    <div class="form">
      <label>Partition <select value=${form.partition} onChange=${set("partition")}><option value="">all</option>${topic.partitions.map((each) => html`<option value=${each.partition}>${each.partition}</option>`)}</select></label>
      <label>From (offset, -50, beginning, or a time) <input value=${form.from} onInput=${set("from")} placeholder="-50" /></label>
      <label style=${{ flex: "1 1 16rem" }}>Filter <input id="filter" value=${form.filter} onInput=${set("filter")} placeholder="json.total > 100 and key == 'alice'" class="mono" /></label>
      <label>At most <input type="number" min="1" max="2000" value=${form.limit} onInput=${set("limit")} /></label>
      ${state.running ? html`<button class="danger" onClick=${stop} id="stop">Stop</button>` : html`<button class="primary" onClick=${() => start(false)} id="read">Read</button>`}
      <button onClick=${() => start(true)} disabled=${state.running} id="tail">Follow</button>
    </div>
    <div class="row small"><span class="soft" id="progress">${state.tail ? `${state.running ? "following" : "followed"}, ${number(state.found)} found` : `${number(state.scanned)} of ${number(state.total)} scanned, ${number(state.found)} found${!state.running && state.scanned < state.total ? (state.found >= Number(form.limit) ? "; that is as many as asked for" : "; stopped") : ""}`}${state.running ? "…" : ""}</span>
      ${state.running && state.total ? html`<div class="bar" style=${{ flex: "1 1 6rem", maxWidth: "16rem" }}><i style=${{ width: `${(100 * state.scanned) / state.total}%` }}></i></div>` : html`<span style=${{ flex: 1 }}></span>`}
      ${["json", "csv", "parquet"].map((format) => html`<a class="button small-button" href=${`${address}/export?${parameters({ format, limit: "" })}`} download>${format}</a>`)}
      ${cluster && cluster.allow_changes ? html`<button class="small-button" onClick=${() => setProducing(true)} id="produce">Produce</button>` : null}
    </div>
    <${Failure} error=${state.error} />
    ${newest.length ? html`<div class="scroll wide" tabindex="0"><table><thead><tr><th scope="col">partition/offset</th><th scope="col">time</th><th scope="col">key</th><th scope="col">value</th></tr></thead>
      <tbody id="records">${newest.map((record) => html`<tr key=${`${record.partition}/${record.offset}`} data-record=${`${record.partition}/${record.offset}`}>
        <td class="num">${record.partition}/${record.offset}</td><td>${record.timestamp < 0 ? "–" : moment(record.timestamp)}</td>
        <td><pre class="record">${record.key === null ? html`<span class="soft">null</span>` : record.key}</pre></td>
        <td><pre class="record">${record.value === null ? html`<span class="soft">null</span>` : record.value}</pre>${record.headers.length ? html`<div class="soft small">${record.headers.map(([name, value]) => `${name}=${value}`).join(", ")}</div>` : null}</td>
      </tr>`)}</tbody></table></div>` : html`<p class="soft">${state.running ? "Reading…" : "No record is like that."}</p>`}
    ${producing ? html`<${Produce} topic=${topic} address=${address} onClose=${() => { setProducing(false); start(false); }} />` : null}
  </section>`;
}

function Produce({ topic, address, onClose }) {
  const [form, setForm] = useState({ key: "", value: "", partition: "" });
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  return html`<${Confirm} title=${`Write a record to ${topic.topic}`} action="Write" onClose=${onClose} onConfirm=${() => post(`${address}/records`, { key: form.key === "" ? null : form.key, value: form.value, partition: form.partition === "" ? null : Number(form.partition) })}>
    <p>Consumers get it like any other record.</p>
    <div class="form"><label>Key <input id="record-key" value=${form.key} onInput=${set("key")} placeholder="none" /></label>
      <label>Partition <select value=${form.partition} onChange=${set("partition")}><option value="">by key, or any</option>${topic.partitions.map((each) => html`<option value=${each.partition}>${each.partition}</option>`)}</select></label></div>
    <label>Value <textarea id="record-value" rows="5" value=${form.value} onInput=${set("value")}></textarea></label><//>`;
}
