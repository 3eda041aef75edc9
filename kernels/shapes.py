"""The shapes of a Monarch product and their checks, which every implementation uses."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MonarchShape:
    """Shapes of w1 (K, q, p) and w2 (J, s, r), with K*q = J*r.

    Source: Monarch (arXiv 2204.00595), section 3.1; the rectangular case is that of its appendix.
    """

    K: int
    q: int
    p: int
    J: int
    s: int
    r: int

    @classmethod
    def of(cls, w1: Tensor, w2: Tensor) -> "MonarchShape":
        """Read and check the shapes of two factors.

        Raises:
            ValueError: a factor is not 3-D, or the K*q rows of w1 are not the J*r columns of w2.
        """
        if w1.dim() != 3 or w2.dim() != 3:
            raise ValueError(
                f"Monarch factors must be 3-D, w1 (K, q, p) and w2 (J, s, r): got {tuple(w1.shape)}, {tuple(w2.shape)}"
            )
        K, q, p = w1.shape
        J, s, r = w2.shape
        if K * q != J * r:
            raise ValueError(
                f"Monarch factors do not chain: w1 {tuple(w1.shape)} gives {K * q} values, "
                f"w2 {tuple(w2.shape)} takes {J * r}"
            )
        return cls(K, q, p, J, s, r)

    @property
    def in_extended(self) -> int:
        """Input width of the product, K*p; narrower inputs are zero-padded to it."""
        return self.K * self.p

    @property
    def out_extended(self) -> int:
        """Output width of the product, J*s; a layer keeps the first `out_features` of them."""
        return self.J * self.s

    def check(self, in_features: int, out_features: int | None) -> int:
        """Check a layer's widths against the factors; returns the output width.

        Raises:
            ValueError: the input is wider than K*p, or more outputs are asked for than J*s.
        """
        if in_features > self.in_extended:
            raise ValueError(f"input of width {in_features} is wider than the {self.in_extended} inputs of w1")
        out = self.out_extended if out_features is None else out_features
        if not 0 < out <= self.out_extended:
            raise ValueError(f"out_features {out} must be between 1 and the {self.out_extended} outputs of w2")
        return out
