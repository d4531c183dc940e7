// The API key: asked for when the server wants one, kept in this tab only, sent with each request.

const PLACE = "lengthwise-key";

const DIALOG = `
<dialog id="key" aria-labelledby="key-title">
  <form id="key-form">
    <h2 id="key-title">API key</h2>
    <p id="key-why">Needed where the server was started with keys. It stays in this tab.</p>
    <label for="key-value">Key</label>
    <input id="key-value" type="password" autocomplete="off" spellcheck="false">
    <p class="right"><button type="button" id="key-close">Cancel</button> <button type="submit" class="main">Use it</button></p>
  </form>
</dialog>`;

export class Key {
  constructor(changed) {
    this.changed = changed;
    document.body.insertAdjacentHTML("beforeend", DIALOG);
    this.dialog = document.getElementById("key");
    this.field = document.getElementById("key-value");
    this.why = document.getElementById("key-why");
    this.usual = this.why.textContent;
    document.getElementById("key-open").addEventListener("click", () => this.ask());
    document.getElementById("key-close").addEventListener("click", () => this.dialog.close());
    document.getElementById("key-form").addEventListener("submit", (event) => this.take(event));
  }

  /** Headers of a request that may need the key. */
  headers() {
    const key = sessionStorage.getItem(PLACE);
    return key ? { Authorization: `Bearer ${key}` } : {};
  }

  /** Open the dialog, with a reason where the server refused. */
  ask(reason) {
    this.why.textContent = reason ?? this.usual;
    this.field.value = sessionStorage.getItem(PLACE) ?? "";
    if (!this.dialog.open) this.dialog.showModal();
  }

  take(event) {
    event.preventDefault();
    const key = this.field.value.trim();
    if (key) sessionStorage.setItem(PLACE, key);
    else sessionStorage.removeItem(PLACE);
    this.dialog.close();
    this.changed();
  }
}
