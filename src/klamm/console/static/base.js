// What every page uses: rendering, the API, words for numbers, links, dialogs, the command line.
import { h, render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);
export { render, useCallback, useEffect, useMemo, useRef, useState };

// The API

export class ApiError extends Error {
  constructor(status, answer) {
    super(answer.message || `The console answered ${status}.`);
    this.status = status;
    this.code = answer.error;
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", ...options });
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new ApiError(response.status, answer);
  }
  return response;
}

export const getJson = async (path, options) => (await ask(path, options)).json();
export const getBytes = async (path, options) => (await ask(path, options)).arrayBuffer();

// The header is what a page of another origin cannot send.
export const post = async (path, body = {}, options = {}) =>
  (
    await ask(path, {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "content-type": "application/json", "x-klamm-console": "1" },
      ...options,
    })
  ).json();

// An answer of the API, asked for again when `keys` change and every `every` milliseconds.
export function useApi(path, { every = 0, keys = [] } = {}) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    let timer = 0;
    const load = async () => {
      try {
        const data = await getJson(path, { signal: abort.signal });
        setState({ data, error: null, loading: false });
      } catch (error) {
        if (error.name === "AbortError") return;
        setState((last) => ({ data: last.data, error, loading: false }));
      }
      if (every) timer = setTimeout(load, every);
    };
    load();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, every, round, ...keys]);
  return { ...state, reload: () => setRound((n) => n + 1) };
}

// Links: every view has one

const listeners = new Set();

export function go(to, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  listeners.forEach((listener) => listener());
}
addEventListener("popstate", () => listeners.forEach((listener) => listener()));

export function useLocation() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(location.pathname + (text ? `?${text}` : ""), { replace: true });
}

export function Link({ to, children, ...rest }) {
  const onClick = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
    scrollTo(0, 0);
  };
  return html`<a href=${to} onClick=${onClick} ...${rest}>${children}</a>`;
}

// Words

const whole = new Intl.NumberFormat("en");
export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

export function bytes(value) {
  if (value === null || value === undefined || value < 0) return "unknown";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 999.5 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at ? value.toPrecision(3) : value} ${units[at]}`;
}

export function micros(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return `${value} µs`;
  if (value < 1e6) return `${(value / 1e3).toPrecision(3)} ms`;
  return `${(value / 1e6).toPrecision(3)} s`;
}

export function seconds(value) {
  if (value === null || value === undefined || !isFinite(value)) return "unknown";
  if (value < 90) return `${Math.ceil(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false,
});
const stamp = new Intl.DateTimeFormat("sv-SE", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3, hour12: false,
});
export const time = (value) => clock.format(new Date(value));
export const moment = (value) => stamp.format(new Date(value)).replace(",", ".");

// Pieces

export function Failure({ error }) {
  if (!error) return null;
  return html`<p class="note bad" role="alert">${error.message}</p>`;
}

export function Figures({ items }) {
  return html`<ul class="figures">
    ${items.map(([label, value, level]) => html`<li class=${level || ""}><b class=${String(value).length > 12 ? "long" : ""}>${value}</b><span>${label}</span></li>`)}
  </ul>`;
}

// A command with its values quoted, so that a name with a blank or a semicolon stays one word.
const quoted = (value) => (/^[\w@%+=:,./-]+$/.test(value) ? String(value) : `'${String(value).replaceAll("'", "'\\''")}'`);
export const sh = (parts, ...values) => parts.reduce((text, part, n) => text + part + (n < values.length ? quoted(values[n]) : ""), "");

// The command that makes tables of the history that is looked at.
export const historyCommand = (cluster) => `klamm history --out history --json${cluster.spools.length ? ` --spool${cluster.spools.map((each) => sh` ${each}`).join("")}` : ""}`;

// The command that gives the same answer, to be copied. Without a cluster that is the history's.
export function Cli({ command, cluster }) {
  const [copied, setCopied] = useState(false);
  if (cluster && cluster.offline && !command.includes("--spool")) command = historyCommand(cluster);
  const server = cluster && cluster.bootstrap_servers && cluster.bootstrap_servers.split(",")[0];
  const secured = cluster && cluster.command_config ? sh` --command-config ${cluster.command_config}` : "";
  const text = server && !command.includes("--spool") ? `${command}${sh` --bootstrap-server ${server}`}${secured}` : command;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="cli">
    <span>The same on the command line</span><code>${text}</code>
    <button class="plain" onClick=${copy} aria-label="Copy the command">${copied ? "copied" : "copy"}</button>
  </div>`;
}

// An action is confirmed with what it will do, and its failure is shown where it was asked for.
export function Confirm({ title, children, action = "Do it", danger = false, onConfirm, onClose }) {
  const dialog = useRef(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  const confirm = async () => {
    setBusy(true);
    try {
      await onConfirm();
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="confirm-title">
    <h2 id="confirm-title">${title}</h2>
    ${children}
    <${Failure} error=${error} />
    <div class="row">
      <button onClick=${onClose} disabled=${busy}>Leave it</button>
      <button class=${danger ? "danger" : "primary"} onClick=${confirm} disabled=${busy} id="confirm">${busy ? "Working…" : action}</button>
    </div>
  </dialog>`;
}

// Views of one page, each with its link.
export function Tabs({ items, chosen, label }) {
  return html`<nav class="row tabs" aria-label=${label}>${items.map(([id, title, to]) => html`<${Link} to=${to} key=${id} id=${`tab-${id}`} class="button" aria-current=${id === chosen ? "page" : undefined}>${title}<//>`)}</nav>`;
}

// Why an action is not offered.
export function ReadOnly({ cluster }) {
  if (!cluster || cluster.allow_changes) return null;
  return html`<p class="soft small">This console only looks; <code>--allow-changes</code> lets it change the cluster.</p>`;
}

// Rows of fixed height, of which only those in sight are drawn.
export function Rows({ items, height = 34, columns, empty = "There is nothing.", max = "70vh", onOpen }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const few = items.length <= 200;
  const view = 1200;
  const from = few ? 0 : Math.max(0, Math.floor(top / height) - 10);
  const to = few ? items.length : Math.min(items.length, from + Math.ceil(view / height) + 20);
  if (!items.length) return html`<p class="soft">${empty}</p>`;
  return html`<div class="scroll wide" tabindex="0" ref=${box} style=${{ maxHeight: max }} onScroll=${() => few || setTop(box.current.scrollTop)}>
    <table>
      <thead><tr>${columns.map(([title, , kind]) => html`<th class=${kind || ""} scope="col">${title}</th>`)}</tr></thead>
      <tbody>
        ${from ? html`<tr style=${{ height: `${from * height}px` }}><td colspan=${columns.length}></td></tr>` : null}
        ${items.slice(from, to).map((item) => html`<tr key=${item.key}>
          ${columns.map(([, show, kind]) => html`<td class=${kind || ""}>${show(item)}</td>`)}
        </tr>`)}
        ${to < items.length ? html`<tr style=${{ height: `${(items.length - to) * height}px` }}><td colspan=${columns.length}></td></tr>` : null}
      </tbody>
    </table>
  </div>`;
}
