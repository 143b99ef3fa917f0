"""Networks for sequences of tokens."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.tasks.models import Shape, require_shape

SIZE = 200  # of the transformer's vectors


class TextCNN(nn.Module):
    """Convolutions of several widths over word vectors, their maxima over time, one classifier.

    Kim (2014), "Convolutional Neural Networks for Sentence Classification". Token 0 is padding.
    """

    def __init__(self, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 100, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(100, 100, width) for width in (3, 4, 5))
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(300, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``(n, num_classes)`` of tokens ``(n, length)``."""
        vectors = self.embedding(tokens).transpose(1, 2)
        maxima = [F.relu(convolve(vectors)).amax(2) for convolve in self.convolutions]
        return self.classifier(self.dropout(torch.cat(maxima, 1)))


class LanguageModel(nn.Module):
    """Transformer encoder (Vaswani et al. 2017) in which a token attends only to earlier tokens.

    It follows PyTorch's example for WikiText-2: embeddings times sqrt(size), sinusoidal positions,
    and an output layer that does not share the embedding's weights.
    """

    def __init__(self, length: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, SIZE)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(0.2)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(SIZE, 2, SIZE, 0.2, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(SIZE, vocabulary)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        # Neither is part of the global model, because both follow from the sizes.
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        # Sines and cosines of geometric wavelengths, shape ``(length, SIZE)``.
        rates = torch.exp(torch.arange(0, SIZE, 2) * (-math.log(10_000.0) / SIZE))
        angles = torch.arange(length)[:, None] * rates
        places = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("places", places, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``(n, length, vocabulary)`` of the next tokens after tokens ``(n, length)``."""
        mask: Tensor = self.get_buffer("mask")
        vectors = self.embedding(tokens) * math.sqrt(SIZE)
        vectors = self.dropout(vectors + self.get_buffer("places"))
        for layer in self.layers:
            vectors = layer(vectors, src_mask=mask, is_causal=True)
        return self.output(vectors)


class CharLSTM(nn.Module):
    """LEAF's network for Shakespeare: small embeddings, two layers of LSTM, one classifier.

    Caldas et al. (2018), "LEAF: A Benchmark for Federated Settings". NOTE: LEAF predicts what comes
    after the last token alone, here it is predicted after each.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.output = nn.Linear(256, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``(n, length, vocabulary)`` of the next tokens after tokens ``(n, length)``."""
        return self.output(self.lstm(self.embedding(tokens))[0])


def textcnn(shape: Shape, num_classes: int) -> nn.Module:
    """FedASMU's TextCNN; 3,120,902 parameters with a vocabulary of 30,000 and 2 classes.

    NOTE: the paper gives no sizes. Here embeddings have 100 entries, there are 100 convolutions of
    each width 3, 4 and 5, and dropout is 0.5.
    """
    require_shape("textcnn", shape, shape[0] >= 5, "of at least 5 words")
    return TextCNN(shape[1], num_classes)


def transformer(shape: Shape, num_classes: int) -> nn.Module:
    """Overlap-FedAvg's Transformer; 13,828,478 parameters with a vocabulary of 33,278."""
    _require_language("transformer", shape, num_classes)
    return LanguageModel(*shape)


def char_lstm(shape: Shape, num_classes: int) -> nn.Module:
    """LEAF's LSTM; 820,185 parameters with a vocabulary of 81, with torch's two biases a layer."""
    _require_language("char_lstm", shape, num_classes)
    return CharLSTM(num_classes)


def _require_language(name: str, shape: Shape, num_classes: int) -> None:
    require_shape(name, shape, shape[1] == num_classes, "whose classes are their vocabulary")
