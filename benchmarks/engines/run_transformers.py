"""Translate with an exported Marian model. This program requires only transformers, PyTorch and sentencepiece.

    python benchmarks/engines/run_transformers.py EXPORT REQUEST.json ANSWER.json

`exports.py` writes the request, {"texts": […], "references": […], "batch": N}, with N sentences per batch. It runs this
program with the Python interpreter given by its flag `--python`. The answer contains the translations of greedy and
beam search, the log-probabilities of the references' tokens in nats, and the sentences per second of beam search.
"""

import json
import sys
import time

import torch
from transformers import MarianMTModel, MarianTokenizer


def main(folder, request_file, answer_file):
    with open(request_file, encoding="utf-8") as file:
        request = json.load(file)
    texts, references, size = request["texts"], request["references"], request["batch"]
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder).eval()

    def translate(**options):
        outputs = []
        for first in range(0, len(texts), size):
            batch = tokenizer(texts[first : first + size], return_tensors="pt", padding=True)
            found = model.generate(**batch, max_new_tokens=200, **options)
            outputs += tokenizer.batch_decode(found, skip_special_tokens=True)
        return outputs

    def log_probabilities(text, reference):
        source = tokenizer([text], return_tensors="pt")
        target = tokenizer(text_target=[reference], return_tensors="pt")["input_ids"]
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        logits = model(**source, decoder_input_ids=torch.cat([start, target[:, :-1]], 1)).logits
        return torch.log_softmax(logits, -1).gather(-1, target[..., None])[0, :, 0].tolist()

    with torch.no_grad():
        greedy = translate(num_beams=1)
        began = time.monotonic()
        beam = translate()
        seconds = time.monotonic() - began
        scored = [log_probabilities(*pair) for pair in zip(texts, references)]
    answer = {"greedy": greedy, "beam": beam, "scored": scored, "sentences_per_second": len(texts) / seconds}
    with open(answer_file, "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
