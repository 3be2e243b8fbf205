"""Shape annotations. With jaxtyping installed (as in the tests) they are checked; without it they read as plain Tensor."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64
else:
    try:
        from jaxtyping import Bool, Float, Int64
    except ImportError:

        class Shaped:
            """Shaped[Tensor, "B L"] is Tensor."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int64 = Shaped

__all__ = ["Bool", "Float", "Int64"]
