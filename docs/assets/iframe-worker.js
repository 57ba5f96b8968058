// Search on a site that is read from a folder. Browsers start no worker for a page that is a file, so there the worker's
// script runs in a hidden frame, with the few functions of a worker's scope that the search calls.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.started = new Promise((resolve) => {
        const script = this.scope.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = resolve;
        this.scope.document.body.append(script);
      });
    }

    async postMessage(data) {
      await this.started;
      this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }));
    }
  };
}
