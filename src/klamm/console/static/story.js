// The story of a partition: what the controller decided about it, and why.
import { Cli, Failure, html, Link, setQuery, sh, useApi, useEffect, useLocation, useRef } from "./base.js";

// Which partition's story is open: the link says so.
export function useStory() {
  const { query } = useLocation();
  return [query.get("story"), (name) => setQuery({ story: name })];
}

export function Story({ name, cluster, onClose }) {
  const dialog = useRef(null);
  const { data, error } = useApi(`/api/story/${encodeURIComponent(name)}`);
  useEffect(() => dialog.current.showModal(), []);
  const topic = name.slice(0, name.lastIndexOf("-"));
  return html`<dialog ref=${dialog} onClose=${onClose} id="story" aria-labelledby="story-title">
    <h2 id="story-title">The story of ${name}</h2>
    <${Failure} error=${error} />
    ${data ? html`<ol class="story">${data.map((entry) => html`<li class=${entry.gap ? "soft" : ""}>${entry.text}
      ${entry.gap ? null : html` <${Link} to=${`/time?at=${entry.controller_epoch}:${entry.seq}`} onMouseUp=${onClose}>see it<//>`}</li>`)}</ol>` : error ? null : html`<p class="soft">Reading…</p>`}
    <p><${Link} to=${`/topics/${encodeURIComponent(topic)}`}>Topic ${topic}<//></p>
    <${Cli} command=${`${sh`klamm story ${name} --json`}${cluster && cluster.spools.length ? ` --spool${cluster.spools.map((each) => sh` ${each}`).join("")}` : ""}`} cluster=${cluster} />
    <div class="row"><button onClick=${onClose}>Close</button></div>
  </dialog>`;
}
