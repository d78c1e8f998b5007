import torch


class TokenRelay:
    def __init__(self):
        self.next_tokens = torch.zeros(8, dtype=torch.int64)

    def stash(self, rows, tokens):
        self.next_tokens[rows] = tokens

    def gather(self, rows):
        return self.next_tokens[rows]
