"""The demo model in PyTorch: a decoder of the Llama kind whose FFN is a mixture of dReLU experts.

RMSNorm, rotary positions in interleaved pairs, grouped-query attention, a softmax router whose top
k weights are renormalised, experts down(relu(gate(x)) * relu(up(x))), tied embeddings. Parameter
names are those of the checkpoints; export.py maps them to GGUF.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    """The shape; `d` is the width, `ff` the neurons of one expert, `ctx` the positions."""

    vocab: int = 4096
    d: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    ff: int = 512
    experts: int = 8
    topk: int = 2
    ctx: int = 256
    theta: float = 10000.0
    eps: float = 1e-5


def linear(inputs, outputs):
    """A matrix without a bias."""
    return nn.Linear(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


def rope_tables(head_dim, positions, theta):
    """cos and sin of position * theta^(-2i / head_dim), each [positions, head_dim / 2]."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return angles.cos(), angles.sin()


def rope(x, cos, sin):
    """Turns the pairs (2i, 2i + 1) of x [batch, heads, positions, head_dim]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * cos - odd * sin, even * sin + odd * cos)
    return torch.stack(turned, -1).flatten(-2)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        head_dim = config.d // config.heads
        self.wq = linear(config.d, config.heads * head_dim)
        self.wk = linear(config.d, config.kv_heads * head_dim)
        self.wv = linear(config.d, config.kv_heads * head_dim)
        self.wo = linear(config.heads * head_dim, config.d)

    def forward(self, x, cos, sin):
        config = self.config
        batch, positions, _ = x.shape

        def split(projected, heads):
            head_dim = config.d // config.heads
            return projected.view(batch, positions, heads, head_dim).transpose(1, 2)

        query = split(self.wq(x), config.heads)
        key = split(self.wk(x), config.kv_heads)
        value = split(self.wv(x), config.kv_heads)
        cos = cos[:positions].to(query.dtype)
        sin = sin[:positions].to(query.dtype)
        query = rope(query, cos, sin)
        key = rope(key, cos, sin)
        group = config.heads // config.kv_heads
        key = key.repeat_interleave(group, 1)
        value = value.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, positions, -1))


class Expert(nn.Module):
    """down(relu(gate(x)) * relu(up(x))); also returns the activations of its neurons."""

    def __init__(self, config):
        super().__init__()
        self.w_gate = linear(config.d, config.ff)
        self.w_up = linear(config.d, config.ff)
        self.w_down = linear(config.ff, config.d)

    def forward(self, x):
        neurons = F.relu(self.w_gate(x)) * F.relu(self.w_up(x))
        return self.w_down(neurons), neurons


class MoE(nn.Module):
    """The mixture of experts.

    `stats`, when set, is called as stats(expert, tokens, ranks, neurons) for each expert used:
    `tokens` are rows of the batch, `neurons` [tokens, ff] their activations.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.router = linear(config.d, config.experts)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.experts))
        self.stats = None

    def forward(self, x):
        """Output, load-balance loss, mean activation (the L1 term; 0 outside training)."""
        config = self.config
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        shares = self.router(x).float().softmax(-1)
        weights, chosen = shares.topk(config.topk, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x, dtype=torch.float32)
        activation_sum = x.new_zeros((), dtype=torch.float32)
        for index, expert in enumerate(self.experts):
            tokens, ranks = (chosen == index).nonzero(as_tuple=True)
            if tokens.numel() == 0:
                continue
            result, neurons = expert(x[tokens])
            out.index_add_(0, tokens, result.float() * weights[tokens, ranks, None])
            if self.training:
                activation_sum = activation_sum + neurons.float().sum()
            if self.stats is not None:
                self.stats(index, tokens, ranks, neurons)
        load = F.one_hot(chosen, config.experts).float().mean((0, 1))
        balance = config.experts * (load * shares.mean(0)).sum()
        activation = activation_sum / (x.shape[0] * config.topk * config.ff)
        return out.view(shape), balance, activation


class Block(nn.Module):
    """One layer: attention and experts, each after a norm and added to the residual."""

    def __init__(self, config):
        super().__init__()
        self.n1 = RMSNorm(config.d, config.eps)
        self.attn = Attention(config)
        self.n2 = RMSNorm(config.d, config.eps)
        self.moe = MoE(config)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin).float()
        out, balance, activation = self.moe(self.n2(x))
        return x + out, balance, activation


class Model(nn.Module):
    """The whole model."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.emb = nn.Embedding(config.vocab, config.d)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.d, config.eps)
        cos, sin = rope_tables(config.d // config.heads, config.ctx, config.theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=self.initial_std(name, parameter))

    def initial_std(self, name, parameter):
        """0.02, or 1 / sqrt(inputs), smaller for what is added to the residual."""
        if "emb" in name or "router" in name:
            return 0.02
        std = parameter.shape[1] ** -0.5
        if name.endswith(("wo.weight", "w_down.weight")):
            std *= (2 * self.config.layers) ** -0.5
        return std

    def forward(self, ids, targets=None):
        """Logits of ids [batch, positions]; with targets (loss, balance, activation) instead."""
        x = self.emb(ids)
        balance = 0
        activation = 0
        for block in self.blocks:
            x, block_balance, block_activation = block(x, self.cos, self.sin)
            balance = balance + block_balance
            activation = activation + block_activation
        logits = F.linear(self.norm(x), self.emb.weight).float()
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
        return loss, balance / self.config.layers, activation / self.config.layers
