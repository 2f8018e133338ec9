"""HTTP server for a trained model, with dynamic batching across requests and a web page."""
