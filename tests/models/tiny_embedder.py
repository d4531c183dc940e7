"""A sentence embedder in miniature, written to a folder: 16 dimensions, and its words are letters."""

from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]


def build(folder: Path) -> Path:
    """Write modules, weights and tokenizer; returns the folder."""
    backend = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    bert = folder / "bert"
    PreTrainedTokenizerFast(tokenizer_object=backend, **marks).save_pretrained(bert)  # type: ignore[no-untyped-call]
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, vocab_size=len(WORDS), intermediate_size=16, max_position_embeddings=32)
    BertModel(config).save_pretrained(bert)
    body = Transformer(str(bert), max_seq_length=32)
    SentenceTransformer(modules=[body, Pooling(16)], device="cpu").save(str(folder), create_model_card=False)
    return folder
