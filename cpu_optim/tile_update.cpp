#include "cpu_optim/tile_update.h"

#include "cpu_optim/kernels.h"
#include "cpu_optim/tile_sweep.h"

namespace penstock::cpu_optim {

TileView TileView::in_place(const TileLayout& layout, std::byte* planes, std::byte* weight, const std::byte* gradient,
                            uint64_t elements, uint64_t first_element) {
  CHECK(layout.places.size() <= kRestingPlanesMax, layout.places.size(), " resting planes, at most ", kRestingPlanesMax,
        " expected");
  TileView tile;
  tile.weight = PlaneView::in_place(weight);
  tile.gradient = gradient;
  for (size_t i = 0; i < layout.places.size(); ++i) {
    tile.planes[i] = PlaneView::in_place(planes + layout.places[i].offset_bytes);
  }
  tile.elements = elements;
  tile.first_element = first_element;
  return tile;
}

TileUpdater::TileUpdater(const StateForm& form, Isa isa)
    : form_(form), planes_(resting_planes(form)), kernels_(&kernels_of(isa)) {
  const Status status = validate(form);
  CHECK(status.ok(), status.message());
  planes_.insert(planes_.begin(), Plane{Role::weight, form.weight});
}

TileReport TileUpdater::update(const TileView& tile, const StepNumbers& numbers, const TileNotes& notes) const {
  const NumbersRun whole{numbers};
  return update(tile, {&whole, 1}, notes);
}

TileReport TileUpdater::update(const TileView& tile, std::span<const NumbersRun> runs, const TileNotes& notes) const {
  return TileSweep(*kernels_, form_, planes_, tile, runs, notes).run();
}

Isa TileUpdater::isa() const { return kernels_->isa; }

}  // namespace penstock::cpu_optim
