// Lessons: things done to brokers of `klamm up`, and exercises that check their own outcome.
import { Cli, Confirm, Failure, html, post, useApi, useState } from "./base.js";
import { Decision } from "./now.js";
import { Phases } from "./time.js";

const OFFERED = { running: ["kill", "stop", "pause"], paused: ["resume", "kill"], dead: ["start"], stopped: ["start"] };

export function Lessons({ cluster }) {
  const { data, error, reload } = useApi("/api/lessons", { every: 700 });
  const [asking, setAsking] = useState(null);
  const [beginning, setBeginning] = useState(null);
  const [acted, setActed] = useState(null); // the step whose button was used; what came of it is seen a little later
  const running = data && data.running;
  const next = running ? running.steps.findIndex((step) => !step.done) : -1;
  return html`<div>
    <div class="head"><h1>Lessons</h1><span class="soft small">This cluster is yours to break.</span></div>
    <${Failure} error=${error} />
    ${data ? html`<div class="columns">
      <div class="stack">
        ${running ? html`<section class="lesson ${running.done ? "done" : ""}" id="lesson" data-lesson=${running.id} data-done=${String(running.done)} aria-label="Exercise">
          <h2>${running.title}</h2>
          <ol>${running.steps.map((step, n) => html`<li class=${n > next && next >= 0 ? "soft" : ""} data-done=${String(step.done)}>
            ${step.text} ${step.done ? html`<span class="tag good">done</span>` : n === next ? (step.verb && acted !== `${running.id} ${n}` ? html`<button class="primary small-button" id="do" onClick=${() => setAsking({ verb: step.verb, broker: running.broker, step: `${running.id} ${n}` })}>${step.verb} ${running.broker}</button>` : html`<span class="tag accent">watching…</span>`) : null}</li>`)}</ol>
          ${running.learned ? html`<p class="note good" id="learned">${running.learned}</p>` : null}
        </section>` : null}
        <section class="card" aria-label="Exercises"><h2>Exercises</h2><div class="halves">${data.lessons.map((lesson) => html`<div><h3>${lesson.title}</h3><p class="small">${lesson.about}</p>
          <button onClick=${() => setBeginning(lesson)} data-start=${lesson.id} class="small-button">${running && running.id === lesson.id ? "Begin again" : "Begin"}</button></div>`)}</div></section>
        <section class="card" aria-label="Brokers"><h2>Brokers</h2><div class="wide"><table><thead><tr><th scope="col">broker</th><th scope="col">process</th><th scope="col">what can happen to it</th></tr></thead><tbody>
          ${data.brokers.map((broker) => html`<tr key=${broker.id}><td>${broker.id}</td><td><span class="tag ${broker.state === "running" ? "good" : broker.state === "paused" ? "warn" : "bad"}">${broker.state}</span>${broker.cut ? html` <span class="tag warn">cut off</span>` : ""}</td>
            <td><div class="row">${[...OFFERED[broker.state], ...(data.can_be_cut ? [broker.cut ? "rejoin" : "cut"] : [])].map((verb) => html`<button class="small-button" data-do=${`${verb}-${broker.id}`} onClick=${() => setAsking({ verb, broker: broker.id })}>${verb}</button>`)}</div></td></tr>`)}
        </tbody></table></div></section>
      </div>
      <section class="card" aria-label="What was decided"><h2>What the controller decided</h2>
        ${running && running.events.length ? html`<ol class="stream" tabindex="0" aria-label="Decisions of this exercise">${running.events.slice().reverse().map((event) => html`<${Decision} key=${event.id} event=${event} />`)}</ol>
          ${running.events.some((event) => event.elections) ? html`<h3>The phases of the last election</h3><${Phases} event=${running.events.filter((event) => event.elections).pop()} />` : null}`
          : html`<p class="soft">Begin an exercise: each decision is explained here from the history.</p>`}
      </section>
    </div>` : null}
    ${asking ? html`<${Confirm} title=${`${asking.verb} broker ${asking.broker}`} action=${asking.verb} danger=${["kill", "stop", "pause", "cut"].includes(asking.verb)} onClose=${() => setAsking(null)} onConfirm=${async () => { await post("/api/lessons/act", { do: asking.verb, broker: asking.broker }); if (asking.step !== undefined) setActed(asking.step); reload(); }}>
      <p>${data.verbs[asking.verb].replace("{}", asking.broker)}</p><//>` : null}
    ${beginning ? html`<${Confirm} title=${beginning.title} action="Begin" onClose=${() => setBeginning(null)} onConfirm=${async () => { await post("/api/lessons", { lesson: beginning.id }); setActed(null); reload(); }}>
      <p>${data.beginnings[beginning.id]}</p><//>` : null}
    <${Cli} command="klamm demo --step" cluster=${null} />
  </div>`;
}
